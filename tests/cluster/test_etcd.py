"""Apps whose hosts meet by etcd, a real one: hosts are lost, and so is etcd; users and certificates."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest

from phalanx._core.rounds import Endpoint, Member, Round
from phalanx._rendezvous.etcd import records
from phalanx._rendezvous.etcd.client import EtcdClient
from phalanx._rendezvous.etcd.proofs import ValueProof, without_proof
from phalanx._rendezvous.etcd.settings import EtcdSettings, parse_endpoints
from phalanx._rendezvous.etcd.keys import KeyValue
from phalanx._wire.rendezvous_frames import AppEnded, LeaderElected, RoundFormed
from tests.cluster.etcd import Etcd
from tests.cluster.kubernetes_keys import Keys
from tests.conftest import wait_until

TOKEN = "5" * 32
CONF = "host_timeout=2,last_call_timeout=30,join_timeout=60"
WORK = """
import os, pathlib, time
place = pathlib.Path(os.environ["PLACE"])
names = ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")
with open(place / "begun", "a") as file:
    file.write(" ".join(os.environ[name] for name in names) + f" {os.getpid()}\\n")
while not (place.parent / "end").exists():
    time.sleep(0.02)
"""


class Hosts:
    """`phalanx torchrun` commands that meet by etcd; each is a host of the app."""

    def __init__(self, directory, etcd):
        self.directory, self.etcd = directory, etcd
        self.running = {}
        (directory / "work.py").write_text(WORK)

    def start(self, name, *flags, conf="", run_id="run", environ=None, backend="etcd"):
        place = self.directory / name
        place.mkdir()
        with open(place / "log", "wb") as log:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-m", "phalanx", "torchrun", "--rdzv-backend", backend]
                + ["--rdzv-endpoint", self.etcd.endpoint, "--rdzv-id", run_id]
                + ["--rdzv-conf", CONF + conf, *flags, str(self.directory / "work.py")],
                env={**os.environ, "PLACE": str(place), "PHALANX_RDZV_TOKEN": TOKEN}
                | (environ or {}),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return name

    def log(self, name):
        return (self.directory / name / "log").read_text()

    def begun(self, name):
        """(rank, world size, restarts, pid) of every round there."""
        try:
            lines = (self.directory / name / "begun").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [tuple(map(int, line.split())) for line in lines]

    def wait_for_round(self, *names, rounds=1, restarts=0):
        """All of them, and nobody else, are in one round, after so many."""

        def agree():
            begun = [self.begun(name) for name in names]
            if not all(len(each) >= rounds for each in begun):
                return False
            last = [each[-1][:3] for each in begun]
            wanted = [(rank, len(names), restarts) for rank in range(len(names))]
            return sorted(last) == wanted

        try:
            wait_until(agree, timeout=60)
        except AssertionError:
            said = {name: (self.begun(name), self.log(name)[-1500:]) for name in self.running}
            raise AssertionError(said) from None

    def lose(self, name):
        """At once; its workers end with it."""
        process = self.running.pop(name)
        process.kill()
        process.wait()

    def leader(self, run_id="run"):
        """The host that leads, by etcd."""
        value = self.etcd.values()[f"/phalanx/{run_id}/leader"]
        port = records.leader_of(KeyValue(without_proof(value), 1)).contact.port
        for name, process in self.running.items():
            listening = psutil.Process(process.pid).net_connections()
            if any(c.status == "LISTEN" and c.laddr.port == port for c in listening):
                return name
        raise AssertionError("nobody leads")

    def end(self):
        """Have the workers end; gives the exit codes."""
        (self.directory / "end").touch()
        return [process.wait(60) for process in self.running.values()]

    def stop(self):
        for name in list(self.running):
            if self.running[name].poll() is None:
                self.lose(name)


@pytest.fixture(scope="module")
def etcd():
    made = Etcd()
    yield made
    made.close()


@pytest.fixture
def hosts(tmp_path, etcd):
    made = Hosts(tmp_path, etcd)
    yield made
    made.stop()


def test_every_host_that_leads_is_lost_and_the_rest_goes_on(hosts, etcd):
    """At once, without a restart counted, down to one; in the end nobody leads."""
    names = [hosts.start(name, "--nnodes", "1:3") for name in "abc"]
    hosts.wait_for_round(*names)
    for rounds in (2, 3):
        hosts.lose(hosts.leader())
        hosts.wait_for_round(*hosts.running, rounds=rounds)
    assert hosts.end() == [0]
    left = {key for key in etcd.values("/phalanx/run/") if "/hosts/" not in key}
    assert left == {"/phalanx/run/round"}, "how it ended can be read for a while"


def test_a_run_id_is_used_again_after_everybody_was_killed(hosts):
    """Restarts are counted from none, and it does not wait for leases to end."""
    flags = ("--nnodes", "2", "--max-restarts", "1")
    names = [hosts.start(name, *flags, run_id="again") for name in "ab"]
    hosts.wait_for_round(*names)
    os.kill(hosts.begun("a")[-1][3], signal.SIGKILL)
    hosts.wait_for_round(*names, rounds=2, restarts=1)
    for name in names:
        hosts.lose(name)
    again = [hosts.start(name, *flags, run_id="again") for name in "cd"]
    hosts.wait_for_round(*again)
    assert hosts.end() == [0, 0]


def test_etcd_dies_and_comes_back_while_an_app_runs(tmp_path):
    """Workers run on; one that fails meanwhile is started anew once etcd is there again."""
    etcd = Etcd()
    hosts = Hosts(tmp_path, etcd)
    try:
        names = [hosts.start(name, "--nnodes", "2", "--max-restarts", "1") for name in "ab"]
        hosts.wait_for_round(*names)
        etcd.members[0].kill()
        wait_until(lambda: any("cannot reach etcd" in hosts.log(name) for name in names))
        os.kill(hosts.begun("a")[-1][3], signal.SIGKILL)
        time.sleep(0.5)
        assert [len(hosts.begun(name)) for name in names] == [1, 1]
        etcd.members[0].start()
        hosts.wait_for_round(*names, rounds=2, restarts=1)
        assert hosts.end() == [0, 0]
    finally:
        hosts.stop()
        etcd.close()


def test_one_member_of_three_is_lost(tmp_path):
    """The one that hosts ask first; another host is lost after it."""
    etcd = Etcd(3)
    hosts = Hosts(tmp_path, etcd)
    try:
        names = [hosts.start(name, "--nnodes", "1:2", backend="etcd-v2") for name in "ab"]
        hosts.wait_for_round(*names)
        etcd.members[0].kill()
        etcd.wait()
        hosts.lose(hosts.leader())
        hosts.wait_for_round(*hosts.running, rounds=2)
        assert hosts.end() == [0]
    finally:
        hosts.stop()
        etcd.close()


def test_users_and_certificates(tmp_path):
    """Who has none cannot write anything; who has both takes part, with a prefix of its own."""
    etcd = Etcd(tls=True)
    hosts = Hosts(tmp_path, etcd)
    try:
        etcd.add_user("trainer", "pa ss", "/mine/")
        (tmp_path / "password").write_text("pa ss\n")
        certificate, key = etcd.client
        tls = f",ca_cert={etcd.keys.ca},ssl_cert={certificate},ssl_cert_key={key},prefix=/mine"
        login, known = {"PHALANX_ETCD_USER": "trainer"}, {"PHALANX_ETCD_PASSWORD": "pa ss"}
        other = Keys(tmp_path / "other")
        other.begin()
        right = f"{tls},password_file={tmp_path / 'password'}"
        wrong = {
            "nobody": (tls, {}, "user name is empty"),
            "liar": (tls, login | {"PHALANX_ETCD_PASSWORD": "x"}, "authentication failed"),
            "elsewhere": (f"{right},prefix=/other", login, "permission denied"),
            "plain": (",join_timeout=1", {}, "no rendezvous by etcd"),
            "astray": (f"{tls},ca_cert={other.ca},join_timeout=1", login | known, "not trusted"),
        }
        for name, (conf, environ, _) in wrong.items():
            hosts.start(name, "--nnodes", "1:2", conf=conf, environ=environ)
        for name, (_, _, said) in wrong.items():
            assert hosts.running.pop(name).wait(60) == 1, name
            assert said in hosts.log(name), hosts.log(name)
            assert "Traceback" not in hosts.log(name)
        assert etcd.values() == {}
        hosts.start("a", "--nnodes", "2", conf=right, environ=login)
        hosts.start("b", "--nnodes", "2", conf=tls, environ=login | known)
        hosts.wait_for_round("a", "b")
        assert all(key.startswith("/mine/run/") for key in etcd.values())
        assert hosts.end() == [0, 0]
    finally:
        hosts.stop()
        etcd.close()


def forged_keys(run_id):
    """A leader and the end of an app, by one who knows everything but the token."""
    place, proof = Endpoint("127.0.0.1", 1), ValueProof(b"guessed", run_id)
    round_ = Round(3, (Member(7, "h", 0, 1),), place, 0, torch=False)
    end = AppEnded(reason="succeeded", missing=(), note="", hosts=())
    frames = {
        "leader": [LeaderElected(leader=7, contact=place)],
        "round": [RoundFormed.make(round_, 7, {7: place}), end],
    }
    seal = lambda key: proof.seal(key, records.encode(frames[key]))
    return {f"/phalanx/{run_id}/{key}": seal(key) for key in frames}


def test_a_host_with_another_token_that_comes_first_leads_nobody(hosts, etcd):
    """The others meet, as if it were not there."""
    conf, other = ",last_call_timeout=1,host_timeout=1", {"PHALANX_RDZV_TOKEN": "6" * 32}
    hosts.start("stranger", "--nnodes", "2", conf=conf, run_id="first", environ=other)
    wait_until(lambda: "/phalanx/first/leader" in etcd.values(), timeout=30)
    names = [hosts.start(name, "--nnodes", "2", conf=conf, run_id="first") for name in "ab"]
    hosts.wait_for_round(*names)
    assert any("Do all hosts have the same token?" in hosts.log(name) for name in names)
    assert hosts.begun("stranger") == []
    hosts.lose("stranger")
    assert hosts.end() == [0, 0]


def test_a_change_is_watched_for_and_a_login_that_has_ended_is_made_anew(monkeypatch):
    """Whoever waits hears of a change by itself; a member that was restarted knows no login."""
    etcd = Etcd()
    try:
        etcd.add_user("trainer", "secret", "/phalanx/")
        monkeypatch.setenv("PHALANX_ETCD_PASSWORD", "secret")
        asyncio.run(_watch_and_log_in_anew(etcd))
    finally:
        etcd.close()


async def _watch_and_log_in_anew(etcd):
    members, settings = parse_endpoints(etcd.endpoint), EtcdSettings(user="trainer")
    watching, writing = (EtcdClient(members, settings, "watched") for _ in range(2))
    try:
        assert await watching.read("leader") is None
        waiting = asyncio.create_task(watching.wait_change("leader", 100.0))
        await writing.write({"another": b"1"}, {})
        assert not waiting.done()
        await writing.write({"leader": b"1"}, {})
        await asyncio.wait_for(waiting, 50.0)
        assert (await watching.read("leader")).value == b"1"
        etcd.members[0].kill()
        etcd.members[0].start()
        await asyncio.to_thread(etcd.wait)
        assert (await watching.read("leader")).value == b"1"
        assert await writing.write({"leader": b"2"}, {})
    finally:
        await watching.close()
        await writing.close()


def test_a_host_with_another_token_takes_no_part(hosts, etcd):
    """Though it may write to etcd: what it is sent is not believed, and it hears nothing."""
    etcd.put(forged_keys("token"))
    hosts.start("a", "--nnodes", "1:2", conf=",last_call_timeout=1", run_id="token")
    hosts.wait_for_round("a")
    other = {"PHALANX_RDZV_TOKEN": "6" * 32}
    hosts.start("b", "--nnodes", "1:2", conf=",join_timeout=3", run_id="token", environ=other)
    assert hosts.running.pop("b").wait(60) == 1
    assert "Do all hosts have the same token?" in hosts.log("b")
    assert len(hosts.begun("a")) == 1
    assert hosts.begun("b") == []
    assert hosts.end() == [0]


def test_dist_ddp_by_etcd(tmp_path, etcd):
    """Two replicas on this machine, by the component's own options."""
    (tmp_path / "work.py").write_text("import os; print('world', os.environ['WORLD_SIZE'])")
    words = ["run", "-s", "local_cwd", "--wait", "--log", "dist.ddp", "-j", "2x1"]
    words += ["--rdzv_backend", "etcd", "--rdzv_endpoint", etcd.endpoint, "--script", "work.py"]
    done = subprocess.run(
        [sys.executable, "-m", "phalanx", *words],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert len(re.findall("world 2", done.stdout + done.stderr)) == 2, (done.stdout, done.stderr)
