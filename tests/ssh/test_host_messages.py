"""What is said of hosts is true at the time, and calls them as the user does."""

import logging
import re
import signal
import socket
import textwrap

import pytest

import phalanx
from phalanx import events
from phalanx.runner import get_runner
from phalanx.specs import AppState
from tests.conftest import wait_until
from tests.ssh.test_elastic import FaultHistory, is_training, train


@pytest.fixture
def chronicle():
    handler = FaultHistory()
    events.configure(handler)
    yield handler
    events.configure()


def test_a_host_that_has_come_back_is_not_said_to_be_away(launcher, cluster, chronicle, caplog):
    """Why it could not be reached is told of those alone that stayed away."""
    caplog.set_level(logging.WARNING)
    app = launcher(3, min_hosts=1).start(train)
    is_training(cluster, cluster.names[:3], chronicle, 1)
    for host in cluster.hosts[1:3]:
        host.kill()
    wait_until(lambda: chronicle.rounds()[-1] == ["box1"], timeout=40)
    session = app._run._session
    wait_until(lambda: set(session.missing) == {1, 2}, timeout=60)
    cluster.hosts[1].boot()
    wait_until(lambda: chronicle.rounds()[-1] == ["box1", "box2"], timeout=60)
    steps = lambda: [e.name for e in chronicle.events if e.name in ("round", "running")]
    wait_until(lambda: steps()[-1] == "running", timeout=60)
    caplog.clear()
    app.signal(signal.SIGUSR2)
    app.result(40)
    said = [r.getMessage() for r in caplog.records]
    assert not [text for text in said if "box2" in text]
    assert len([text for text in said if "box3" in text]) == 1


@pytest.fixture
def alias(cluster):
    """A name for the first host that the host itself does not know."""
    config = cluster.directory / "alias_config"
    config.write_text(f"Host big-one\n  HostName {cluster.hosts[0].address}\n")
    config.write_text(config.read_text() + cluster.ssh_config.read_text())
    return config


def test_a_host_is_called_as_the_user_calls_it(alias, tmp_path, caplog, capfd):
    """In notes, values, records and errors; its own name is not among them."""

    def work():
        open("left-behind", "w").close()
        print("here")
        return socket.gethostname(), phalanx.context().host

    launcher = phalanx.Launcher(
        hostnames=["big-one"], workers_per_host=1, ssh_config_file=str(alias)
    )
    app = launcher.start(work)
    ((own, given),) = app.result(60)
    assert (own, given) == ("box1", "big-one")
    said = "\n".join(r.getMessage() for r in caplog.records) + "".join(capfd.readouterr())
    assert re.search(r"big-one: workers wrote 1 file", said)
    assert "box1" not in said
    assert [line.hostname for line in app.logs()] == ["big-one"]

    def fail():
        raise ValueError("no")

    with pytest.raises(ValueError) as caught:
        launcher.run(fail)
    assert "rank 0 on big-one" in "".join(caught.value.__notes__)


def test_an_apps_hosts_are_called_as_the_user_calls_them(alias, tmp_path):
    """By the agents that run on them, too."""
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
        import phalanx
        print("on", phalanx.context().host)
        raise ValueError("no")
        """)
    )
    with get_runner() as runner:
        cfg = {"hosts": ["big-one"], "ssh_config_file": str(alias)}
        args = ["-j", "1x1", "--script", "train.py"]
        handle = runner.run_component("dist.ddp", args, "ssh", cfg)
        assert runner.wait(handle).state is AppState.FAILED
        lines = "\n".join(runner.log_lines(handle))
        runner.delete(handle)
    assert "on big-one" in lines
    assert "rank 0 on big-one" in lines
    assert "box1" not in lines
