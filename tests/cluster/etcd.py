"""A real etcd on this machine: some members, each with a port and data of its own.

`kill` ends a member as a crash would, `start` has it go on with its data. With `keys` it speaks TLS
and asks for certificates; `add_user` turns its users on.
"""

import base64
import json
import os
import shutil
import signal
import ssl
import subprocess
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from phalanx._system import network
from tests.cluster.kubernetes_keys import Keys
from tests.conftest import wait_until

TOOLS = ("etcd", "openssl")


def why_not():
    """The reason why it cannot be had here, or None."""
    missing = [tool for tool in TOOLS if not shutil.which(tool)]
    if missing:
        return f"{', '.join(missing)} not installed; 'make test SYSTEM=1' does it"
    return None


class Etcd:
    """Some members.

    Args:
        count: How many.
        address: Where they listen.
        tls: They speak TLS, and ask for a certificate.
        flags: More flags for each.
    """

    def __init__(self, count=1, address="127.0.0.1", *, tls=False, flags=()):
        self.directory = Path(tempfile.mkdtemp(prefix="etcd-of-", dir="/tmp"))
        self.address = address
        self.keys = None
        self.flags = flags
        if tls:
            self.keys = Keys(self.directory / "keys")
            self.keys.begin()
            subject = f"extendedKeyUsage=serverAuth,clientAuth\nsubjectAltName=IP:{address}"
            self.certificate = self.keys.certificate("etcd", "/CN=etcd", subject)
            # With a common name etcd refuses requests over HTTP once it has users.
            self.client = self.keys.certificate("client", "/O=phalanx-tests")
        self.scheme = "https" if tls else "http"
        ports = free_ports(2 * count)
        self.members = [_Member(self, i, *ports[2 * i : 2 * i + 2]) for i in range(count)]
        self.token = None
        for member in self.members:
            member.start()
        self.wait()

    @property
    def endpoint(self):
        """The members, as --rdzv-endpoint has them."""
        return ",".join(f"{self.address}:{member.port}" for member in self.members)

    def wait(self):
        """Until it takes requests."""
        wait_until(self._answers, timeout=60, message="etcd does not answer")

    def _answers(self):
        try:
            self.ask("kv/range", {"key": _text("nothing")})
        except urllib.error.HTTPError as error:
            return error.code < 500  # it has users, and asks who we are
        except OSError:
            return False
        return True

    def ask(self, path, what, token=None):
        """Have the first member that runs do something; gives its answer."""
        member = next(member for member in self.members if member.process is not None)
        url = f"{self.scheme}://{self.address}:{member.port}/v3/{path}"
        request = urllib.request.Request(url, json.dumps(what).encode())
        if token or self.token:
            request.add_header("Authorization", token or self.token)
        context = None
        if self.keys is not None:
            context = ssl.create_default_context(cafile=self.keys.ca)
            context.load_cert_chain(*self.client)
        with urllib.request.urlopen(request, timeout=5, context=context) as answer:
            return json.loads(answer.read())

    def values(self, prefix="/"):
        """What is there, by key."""
        end = _after(prefix)
        found = self.ask("kv/range", {"key": _text(prefix), "range_end": _text(end)})
        decode = lambda text: base64.b64decode(text or "")
        return {decode(i["key"]).decode(): decode(i.get("value")) for i in found.get("kvs", ())}

    def put(self, values):
        """Have it written, whatever is there."""
        for key, value in values.items():
            text = base64.b64encode(value).decode()
            self.ask("kv/put", {"key": _text(key), "value": text})

    def add_user(self, name, password, prefix):
        """One that may read and write below a prefix; from the first on everybody is asked."""
        self.ask("auth/user/add", {"name": "root", "password": "root"})
        self.ask("auth/role/add", {"name": "root"})
        self.ask("auth/user/grant", {"user": "root", "role": "root"})
        self.ask("auth/user/add", {"name": name, "password": password})
        self.ask("auth/role/add", {"name": name})
        end = _after(prefix)
        rights = {"permType": "READWRITE", "key": _text(prefix), "range_end": _text(end)}
        self.ask("auth/role/grant", {"name": name, "perm": rights})
        self.ask("auth/user/grant", {"user": name, "role": name})
        self.ask("auth/enable", {})
        self.token = self.login("root", "root")

    def login(self, name, password):
        """A token of a user's."""
        return self.ask("auth/authenticate", {"name": name, "password": password})["token"]

    def close(self):
        for member in self.members:
            member.kill()
        shutil.rmtree(self.directory)


class _Member:
    """One of them."""

    def __init__(self, etcd, number, port, peer_port):
        self.etcd, self.port = etcd, port
        self.name = f"m{number}"
        self.peer = f"{self.name}=http://127.0.0.1:{peer_port}"
        self.process = None

    def start(self):
        """With the data that it had."""
        etcd = self.etcd
        client = f"{etcd.scheme}://{etcd.address}:{self.port}"
        peer = self.peer.partition("=")[2]
        words = ["etcd", "--name", self.name, "--data-dir", etcd.directory / self.name]
        words += ["--listen-client-urls", client, "--advertise-client-urls", client]
        words += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        words += ["--initial-cluster", ",".join(member.peer for member in etcd.members)]
        words += ["--unsafe-no-fsync"] if "unsafe-no-fsync" in _help() else []
        if etcd.keys is not None:
            certificate, key = etcd.certificate
            words += ["--cert-file", certificate, "--key-file", key]
            words += ["--client-cert-auth", "--trusted-ca-file", etcd.keys.ca]
        with open(etcd.directory / f"{self.name}.log", "ab") as log:
            self.process = subprocess.Popen(
                [*map(str, words), *etcd.flags], stdout=log, stderr=log, start_new_session=True
            )

    def kill(self):
        """At once; idempotent."""
        process, self.process = self.process, None
        if process is not None:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()


def _help():
    return subprocess.run(["etcd", "--help"], capture_output=True, text=True, check=False).stdout


def free_ports(count):
    """Some ports that nobody has now."""
    bound = [network.bind(anywhere=False) for _ in range(count)]
    try:
        return [one.getsockname()[1] for one in bound]
    finally:
        for one in bound:
            one.close()


def _text(text):
    return base64.b64encode(text.encode()).decode()


def _after(prefix):
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)
