"""A real Docker engine on this machine: dockerd, its containerd, and an image with Python.

It runs in namespaces of its own (processes, mounts, network), so that nothing of it is seen by other
engines here, and all of it is gone when their first process is killed: containers, bridges, mounts.
Networks of containers are inside; what is to speak with published ports or with the engine over TCP
is started there by `inside`. Nothing reaches the outside. Needs root.
"""

import hashlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.cluster import machine
from tests.cluster.machine import CACHE, Machine, SharedPlace, read
from tests.conftest import is_alive, wait_until

TOOLS = ("dockerd", "containerd", "runc", *machine.TOOLS)
IMAGE = "phalanx-tests/base:1"
"""Debian's Python 3, bash, coreutils and procps; no working directory, no user."""
NO_SHELL = "rm /usr/bin/sh /usr/bin/dash /usr/bin/bash"
"""What makes it an image without a shell."""

_PREFIX = "docker-of-"
_SYS_RESOURCE = 24


def why_not():
    """The reason why it cannot be had here, or None."""
    return machine.why_not("a Docker engine", TOOLS)


class DockerMachine(Machine):
    """A machine with an engine.

    Args:
        place: A directory for its files.
    """

    def __init__(self, place):
        super().__init__(place)
        self.socket = place / "docker.sock"
        self.host = f"unix://{self.socket}"
        self.environ = {
            **{k: v for k, v in self.environ.items() if not k.startswith("DOCKER_")},
            "DOCKER_HOST": self.host,
            "DOCKER_CONFIG": str(place / "client"),
        }

    def begin(self):
        super().begin()
        for name in ("client", "run"):
            (self.place / name).mkdir(exist_ok=True)
        Path("/run/containerd").mkdir(exist_ok=True)
        self.inside("mount", "--bind", self.place / "run", "/run/containerd")

    # ── the daemon ────────────────────────────────────────────────────────────

    def start(self, **settings):
        """Start the daemon, which knows what it knew. `settings` are those of daemon.json.

        `hosts` among them are added to its socket.
        """
        if runtime := self.runtime():
            settings |= {
                "runtimes": {"clamped": {"path": runtime}},
                "default-runtime": "clamped",
            }
        settings |= {
            "hosts": [self.host, *settings.pop("hosts", ())],
            "data-root": str(self.place / "data"),
            "exec-root": str(self.place / "exec"),
            "pidfile": str(self.place / "dockerd.pid"),
            "deprecated-key-path": str(self.place / "key.json"),
            "exec-opts": ["native.cgroupdriver=cgroupfs"],
            "cgroup-parent": f"/{self.group}",
            "iptables": False,
            "ip6tables": False,
            "default-address-pools": [{"base": "10.199.0.0/16", "size": 24}],
            "insecure-registries": ["127.0.0.0/8"],
            "shutdown-timeout": 2,
        }
        (self.place / "daemon.json").write_text(json.dumps(settings))
        (self.place / "dockerd.pid").unlink(missing_ok=True)
        self.spawn("dockerd", "dockerd", "--config-file", self.place / "daemon.json")
        try:
            wait_until(self._answers, 60)
        except AssertionError:
            tail = read(self.place / "dockerd.log")[-2000:]
            raise RuntimeError(f"dockerd does not answer: {tail}") from None

    def runtime(self):
        """A runc that asks for nothing that this machine may not give; None where it may."""
        if _has_sys_resource():
            return None
        program = Path(__file__).with_name("runc_without_sys_resource.py")
        wrapper = self.place / "runc"
        wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} -IS {program} "$@"\n')
        wrapper.chmod(0o755)
        return str(wrapper)

    def stop(self, *, kill=False):
        """Have the daemon go away: told to, which stops containers, or killed, which does not."""
        for pid in self.daemons("dockerd", self.place / "daemon.json"):
            os.kill(pid, signal.SIGKILL if kill else signal.SIGTERM)
            wait_until(lambda: not is_alive(pid), 30, "dockerd does not end")

    def hang(self):
        """Have the daemon stand still."""
        self._signal(signal.SIGSTOP)

    def go_on(self):
        """Have it go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number):
        for pid in self.daemons("dockerd", self.place / "daemon.json"):
            os.kill(pid, number)

    def _answers(self):
        done = subprocess.run(
            ["docker", "version"], env=self.environ, capture_output=True, check=False
        )
        return done.returncode == 0

    # ── what is asked of it ───────────────────────────────────────────────────

    def docker(self, *arguments, check=True, **kwargs):
        """Run a command of the client's; gives what it printed."""
        return self._run("docker", *arguments, check=check, **kwargs)

    def left(self):
        """All there is of containers, volumes and networks."""
        return {
            "containers": self.docker("ps", "-aq").split(),
            "volumes": self.docker("volume", "ls", "-q").split(),
            "networks": self.docker("network", "ls", "-q", "--filter", "type=custom").split(),
        }

    def clear(self):
        """Remove all of that."""
        left = self.left()
        if left["containers"]:
            self.docker("rm", "-fv", *left["containers"], check=False)
        if left["networks"]:
            self.docker("network", "rm", *left["networks"], check=False)
        if left["volumes"]:
            self.docker("volume", "rm", "-f", *left["volumes"], check=False)

    def load_base(self):
        """Have `IMAGE`."""
        options = ("--change", 'CMD ["bash"]')
        self.docker("import", *options, base_image(), IMAGE)


class Engine(DockerMachine):
    """Running from the beginning.

    Args:
        shared: A name. Of those who give the same, in whatever process, the first starts the
            engine, and the last to close it ends it.
    """

    def __init__(self, shared=None):
        self._shared = SharedPlace(_PREFIX, shared, lambda place: Machine(place).end())
        super().__init__(self._shared.path)
        try:
            with self._shared.alone():
                if not self.is_up():
                    self.begin()
                    self.start()
                    self.load_base()
        except BaseException:
            self.close()
            raise

    def close(self):
        """Let go of it; the last to do so ends it."""
        self._shared.close()


def _has_sys_resource():
    found = re.search(r"CapEff:\s*(\w+)", read("/proc/self/status"))
    return bool(int(found[1], 16) >> _SYS_RESOURCE & 1)


# ── the image ─────────────────────────────────────────────────────────────────

_PACKAGES = (
    *("base-files", "base-passwd", "bash", "dash", "coreutils", "grep", "sed", "hostname"),
    *("libc-bin", "procps", "iproute2", "python3"),
)
_MAKING = 1
"""Counts ways to make the image: the files of another one are not used."""
_LEFT_OUT = ("/usr/share/doc/", "/usr/share/man/", "/usr/share/locale/", "/usr/share/perl")


def base_image():
    """A file with an image of this machine's own Debian packages, made once; no network."""
    packages = _with_dependencies(_PACKAGES)
    digest = hashlib.sha256(repr((_MAKING, packages)).encode())
    CACHE.mkdir(parents=True, exist_ok=True)
    file = CACHE / f"base-{digest.hexdigest()[:16]}.tar"
    if not file.exists():
        with tempfile.NamedTemporaryFile(dir=CACHE, delete=False) as new:
            with tarfile.open(fileobj=new, mode="w") as tar:
                _fill(tar, [name for name, _ in packages])
        os.rename(new.name, file)
    return file


def _with_dependencies(names):
    """Installed packages and all that they need: names and versions."""
    form = "${binary:Package}\t${Version}\t${Pre-Depends}, ${Depends}\t${Provides}\n"
    listed = subprocess.run(
        ["dpkg-query", "-W", "-f", form], capture_output=True, text=True, check=True
    )
    installed = {}
    for line in listed.stdout.splitlines():
        full, version, needs, provides = line.split("\t")
        entry = (full, version, re.findall(r"[\w.+-]+(?=[^,|]*)", re.sub(r"\([^)]*\)", "", needs)))
        for name in [full.partition(":")[0], *re.findall(r"[a-z][\w.+-]+", provides)]:
            installed.setdefault(name, entry)
    found, open_ones = {}, list(names)
    while open_ones:
        entry = installed.get(open_ones.pop())
        if entry and entry[0] not in found:
            found[entry[0]] = entry[1]
            open_ones += entry[2]
    return sorted(found.items())


def _fill(tar, packages):
    """Write the files of packages, at the places where they really are."""
    paths = set()
    for package in packages:
        for info in (package, package.partition(":")[0]):
            listing = Path(f"/var/lib/dpkg/info/{info}.list")
            if listing.exists():
                paths.update(listing.read_text().splitlines())
                break
    # As after the installation: Python's compiled modules, or every start would compile anew.
    for path in [path for path in paths if path.endswith(".py")]:
        folder, name = os.path.split(path)
        paths.update(map(str, Path(folder, "__pycache__").glob(f"{name[:-3]}.*.pyc")))
    real = set()
    for path in paths:
        folder, name = os.path.split(path)
        place = os.path.join(os.path.realpath(folder), name)
        if (
            not f"{place}/".startswith(_LEFT_OUT)
            and os.path.lexists(place)
            and name not in ("", ".")
        ):
            real.add(place)
    real.update(path for path in ("/bin", "/sbin", "/lib", "/lib64") if os.path.islink(path))
    real.update(("/etc/ld.so.cache", "/bin/sh"))
    made = {"/tmp": 0o1777, "/dev": 0o755, "/proc": 0o755, "/sys": 0o755, "/run": 0o755}
    for path in sorted(real - set(made)):
        if path.count("/") == 2 and os.path.islink(os.path.dirname(path)):
            continue  # it is there under its real name
        tar.add(path, recursive=False)
    for path, mode in {**made, "/root": 0o700, "/home": 0o755}.items():
        entry = tarfile.TarInfo(path)
        entry.type, entry.mode = tarfile.DIRTYPE, mode
        tar.addfile(entry)
    texts = {
        "/etc/passwd": "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534::/nonexistent:/bin/sh\n"
        "user:x:1000:1000::/home:/bin/bash\n",
        "/etc/group": "root:x:0:\nnogroup:x:65534:\nuser:x:1000:\n",
        "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    }
    for path, text in texts.items():
        entry = tarfile.TarInfo(path)
        entry.size, entry.mode = len(text), 0o644
        tar.addfile(entry, io.BytesIO(text.encode()))
