"""An engine over TCP, with TLS and without it: what runs here is in the engine's own network."""

import os
import subprocess
import sys

import pytest

from tests.cluster.docker import IMAGE, Engine

PLAIN, SECURE = 23750, 23760

PROGRAM = f"""
import os
import phalanx

def work(value):
    return value, os.environ["RANK"]

for path in ("", os.environ["PATH"]):  # by ours, where docker's own command is missing; and by that
    os.environ["PATH"] = path
    launcher = phalanx.Launcher(
        scheduler="local_docker", num_hosts=1, image={IMAGE!r}, workers_per_host=2
    )
    print(list(launcher.run(work, {{"value": "x" * 3}})))
"""


def make_certificates(place):
    """An authority, and what the engine and its clients show to each other, as Docker names it."""
    place.mkdir()
    options = {"cwd": place, "check": True, "capture_output": True}
    new = ("openssl", "req", "-newkey", "rsa:2048", "-nodes", "-days", "2")
    subprocess.run(
        [*new, "-x509", "-keyout", "ca-key.pem", "-out", "ca.pem", "-subj", "/CN=authority"],
        **options,
    )
    for name, usage in (("server", "serverAuth"), ("client", "clientAuth")):
        (place / "more").write_text(f"extendedKeyUsage={usage}\nsubjectAltName=IP:127.0.0.1\n")
        keys = ("-keyout", f"{name}-key.pem", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        subprocess.run([word for word in new if word not in ("-days", "2")] + [*keys], **options)
        sign = ("openssl", "x509", "-req", "-days", "2", "-CAcreateserial", "-extfile", "more")
        own = ("-in", f"{name}.csr", "-out", f"{name}.pem", "-CA", "ca.pem", "-CAkey", "ca-key.pem")
        subprocess.run([*sign, *own], **options)
    os.rename(place / "client.pem", place / "cert.pem")
    os.rename(place / "client-key.pem", place / "key.pem")


@pytest.fixture(scope="module")
def engine(docker, tmp_path_factory):
    made = Engine()
    certificates = tmp_path_factory.mktemp("engine") / "certificates"
    try:
        make_certificates(certificates)
        made.certificates = certificates
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "TLS"])
def test_apps_workspaces_and_functions(engine, tmp_path, secure):
    """All by the API alone; functions by docker's command too."""
    engine.stop()
    place, port = engine.certificates, SECURE if secure else PLAIN
    settings = {"hosts": [f"tcp://127.0.0.1:{port}"]}
    if secure:
        named = {"tlscacert": "ca.pem", "tlscert": "server.pem", "tlskey": "server-key.pem"}
        settings |= {"tlsverify": True, **{key: str(place / file) for key, file in named.items()}}
    engine.start(**settings)
    environ = {
        **engine.environ,
        "DOCKER_HOST": settings["hosts"][0],
        "XDG_STATE_HOME": str(tmp_path / "state"),
        **({"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": str(place)} if secure else {}),
    }
    project = tmp_path / "project"
    project.mkdir()
    (project / "main.py").write_text("print('from the project')\n")

    def run(*command):
        variables = [f"{key}={value}" for key, value in environ.items()]
        words = ("sh", "-c", 'cd "$0" && exec "$@" 2>&1', project, *command)
        return engine.inside("env", *variables, *words)

    words = ("run", "-s", "local_docker", "-cfg", "pull=never", "--wait", "--log")
    words += ("dist.ddp", "--image", IMAGE, "-j", "2x1", "--script", "main.py")
    printed = run(sys.executable, "-m", "phalanx", *words)
    assert printed.count("from the project") == 2
    printed = run(sys.executable, "-c", PROGRAM)
    assert printed.count("[('xxx', '0'), ('xxx', '1')]") == 2, printed
