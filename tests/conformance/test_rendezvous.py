"""Every rendezvous passes the suite that a plugin's must."""

import base64
import urllib.error

import pytest

from phalanx.rendezvous import get_handler
from phalanx.testing import RendezvousSuite
from tests.cluster import etcd as etcd_box
from tests.directory_rendezvous import DirectoryRendezvous

REASON = etcd_box.why_not()
needs_etcd = pytest.mark.skipif(REASON is not None, reason=str(REASON))


@pytest.fixture(scope="module")
def plain_etcd():
    server = etcd_box.Etcd()
    yield server
    server.close()


@pytest.fixture(scope="module")
def etcd_with_users():
    server = etcd_box.Etcd()
    server.add_user("suite", "secret", "/phalanx/suite-")
    yield server
    server.close()


class OverTcp(RendezvousSuite):
    """Where a token is what hosts prove to each other."""

    backend = "tcp"

    @pytest.fixture(autouse=True)
    def tokens(self, tmp_path):
        self.directory = tmp_path
        self.endpoints = {}
        for name, digit in (("right", "1"), ("wrong", "2")):
            file = tmp_path / name
            file.write_text(digit * 32)
            file.chmod(0o600)

    def endpoint(self, run_id):
        if run_id not in self.endpoints:
            self.endpoints[run_id] = f"127.0.0.1:{etcd_box.free_ports(1)[0]}"
        return self.endpoints[run_id]

    def more(self, host):
        return {"is_host": host == 0}

    def create_handler(self, run_id, host, min_hosts, max_hosts, timeout, token="right"):
        return get_handler(
            *(self.backend, self.endpoint(run_id), run_id, min_hosts, max_hosts),
            join_timeout=timeout,
            last_call_timeout=0.3,
            host_timeout=5,
            token_file=str(self.directory / token),
            **self.more(host),
        )

    def create_stranger(self, *arguments):
        return self.create_handler(*arguments, token="wrong")


class TestTcp(OverTcp):
    """The first host at the endpoint leads."""


class TestStatic(OverTcp):
    """All hosts are known beforehand, and meet at a fixed port."""

    backend = "static"
    elastic = False

    def more(self, host):
        return {"node_rank": host}


@needs_etcd
class TestEtcd(OverTcp):
    """etcd says who leads."""

    backend = "etcd"

    @pytest.fixture(autouse=True)
    def etcd(self, plain_etcd):
        self.server = plain_etcd

    def endpoint(self, run_id):
        return self.server.endpoint

    def more(self, host):
        return {}


@needs_etcd
class TestEtcdUsers(TestEtcd):
    """One that etcd does not know writes nothing, whatever token it has."""

    @pytest.fixture(autouse=True)
    def etcd(self, etcd_with_users, monkeypatch):
        self.server = etcd_with_users
        monkeypatch.setenv("PHALANX_ETCD_PASSWORD", "secret")
        self._user = "suite"

    def more(self, host):
        return {"user": self._user} if self._user else {}

    def create_stranger(self, *arguments):
        self._user = None
        try:
            return self.create_handler(*arguments)
        finally:
            self._user = "suite"

    def test_nothing_is_written_without_a_login(self):
        """etcd itself refuses, below the prefix and elsewhere; a user stays below its own."""
        encode = lambda text: base64.b64encode(text.encode()).decode()
        token = self.server.login("suite", "secret")
        for key, login in (("/phalanx/suite-x/leader", "none"), ("/phalanx/other/leader", token)):
            with pytest.raises(urllib.error.HTTPError):
                self.server.ask("kv/put", {"key": encode(key), "value": ""}, login)


class TestDirectory(RendezvousSuite):
    """A plugin's."""

    @pytest.fixture(autouse=True)
    def directory(self, tmp_path):
        self.place = tmp_path

    def create_handler(self, run_id, host, min_hosts, max_hosts, timeout):
        return DirectoryRendezvous(self.place, run_id, min_hosts, max_hosts, timeout)
