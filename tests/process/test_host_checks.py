"""Hosts are checked before workers start there."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

import phalanx
from phalanx import _cli as cli
from phalanx._launcher.agents import host_checks
from phalanx._launcher.session import session
from phalanx.specs import HostState
from tests.conftest import wait_until

HERE = ["localhost", "127.0.0.1"]


def is_good():
    """A check of the user's: what marks a bad host is found by its name."""
    if os.environ.get("BAD") and Path(os.environ["BAD"]).exists():
        return "the mark is there"
    return None


def test_hosts_that_pass_are_used():
    """By our own checks and the user's; what these print is not theirs to answer with."""

    def noisy():
        print("checking")
        return is_good()

    checks = ["disk=1KiB", "clock=10s", noisy]
    assert list(phalanx.launch(os.getpid, host_checks=checks, workers_per_host=1))


def test_a_host_that_fails_a_check_is_named_with_the_value():
    """The function has not run."""
    with pytest.raises(
        phalanx.StartFailed, match=r"host check disk failed: .* MiB free, less than"
    ):
        phalanx.launch(Path("ran").touch, host_checks=["disk=10000TiB"], workers_per_host=1)
    assert not Path("ran").exists()


def test_what_a_check_raises_is_told():
    """As the reason."""

    def broken():
        raise ValueError("no such device")

    with pytest.raises(phalanx.StartFailed, match="broken failed: ValueError: no such device"):
        phalanx.launch(os.getpid, host_checks=[broken], workers_per_host=1)


def test_a_check_that_hangs_has_failed(monkeypatch):
    """And leaves nothing behind."""
    monkeypatch.setattr(host_checks, "SECONDS", 3.0)

    def hang():
        child = subprocess.Popen(["sleep", "1000"])
        child.wait()

    with pytest.raises(phalanx.StartFailed, match=r"failed: it did not end within 3 s"):
        phalanx.launch(os.getpid, host_checks=[hang], workers_per_host=1)


def test_an_elastic_app_goes_on_without_a_host_until_it_is_fit(tmp_path, monkeypatch):
    """It fails its check when a round begins, is checked again, and then comes back."""
    monkeypatch.setattr(session, "_CHECK_AGAIN", 0.1)
    mark, go = tmp_path / "mark", tmp_path / "go"

    def work():
        context = phalanx.context()
        if context.round == 1:
            time.sleep(0.2)
            if context.rank == 0:
                mark.touch()
                os.kill(os.getpid(), 9)
        while not go.exists() and context.world_size == 1:
            time.sleep(0.01)
        return context.world_size

    app = phalanx.Launcher(
        hostnames=HERE,
        workers_per_host=1,
        host_env_vars={"127.0.0.1": {"BAD": str(mark)}},
        min_hosts=1,
        max_restarts=3,
        backend=None,
        host_checks=[is_good],
    ).start(work)
    aside = lambda: [h for h in app.status().hosts if h.state is HostState.SET_ASIDE]
    (host,) = wait_until(aside, timeout=60)
    assert host.hostname == "127.0.0.1"
    assert "is_good failed: the mark is there" in host.reason
    wait_until(lambda: len(app.status().workers) == 1)
    mark.unlink()
    wait_until(lambda: len(app.status().workers) == 2)
    go.touch()
    assert list(app.result(60)) == [2, 2]


def test_the_command_checks_hosts(capsys):
    """And says that one which fails is not usable."""
    assert cli.main(["hosts", "check", "--json", "--host-checks", "disk=10000TiB", "clock"]) == 1
    (host,) = json.loads(capsys.readouterr().out)["hosts"]
    assert list(host["failed_checks"]) == ["disk"]


@pytest.mark.parametrize(
    ("checks", "message"),
    [
        (["disc"], r"unknown host check 'disc'. Did you mean 'disk'"),
        (["disk=big"], r"'disk=big': invalid size 'big'"),
        (["gpus=x"], r"'gpus=x': 'x' is not a whole number"),
        ("disk", r"must be a list"),
        ([3], r"3 is neither a check's name nor a function"),
    ],
)
def test_mistakes_are_named(checks, message):
    """Before anything starts."""
    with pytest.raises(phalanx.ConfigError, match=message):
        phalanx.launch(os.getpid, host_checks=checks)
