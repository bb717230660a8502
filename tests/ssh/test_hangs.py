"""Workers on other hosts that do not get on."""

import os
import re
import time

import pytest

import phalanx
from tests.conftest import wait_until
from tests.process.commands import phalanx as command


def load_batch():
    time.sleep(600)


def train():
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(2))
    phalanx.heartbeat()
    if os.environ["RANK"] == "1":
        load_batch()
    dist.all_reduce(torch.ones(2))


def test_the_rank_that_the_others_wait_for_is_named_with_its_host(launcher):
    """All hosts' ranks stop beating; two of them wait in the collective."""
    with pytest.raises(phalanx.WorkerFailed) as caught:
        launcher(3, heartbeat_timeout=3).run(train)
    error = caught.value
    assert (error.rank, error.hostname) == (1, "box2")
    assert str(error).startswith(
        "rank 1 on box2 has not called phalanx.heartbeat() for 3 s; it is in test_hangs.py:"
    )
    assert "in load_batch: `time.sleep(600)`" in str(error)
    assert f'File "{__file__}", line ' in error.worker_traceback


def test_an_app_of_torchruns_says_who_is_missing(cluster, tmp_path, monkeypatch):
    """`dist.ddp`: while it hangs, its stacks do, and its status when the collective timed out.

    Who waits and who is waited for are in different replicas: neither knows all of it.
    """
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(
        "import datetime, time\n"
        "import torch, torch.distributed as dist\n"
        "def load():\n    time.sleep(600)\n"
        "dist.init_process_group('gloo', timeout=datetime.timedelta(seconds=8))\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))\n"
        "for step in range(5):\n"
        "    if step == 2 and dist.get_rank() == 1:\n        load()\n"
        "    model(torch.ones(1, 2)).sum().backward()\n"
    )
    config = f"hosts={','.join(cluster.names[:2])},ssh_config_file={cluster.ssh_config}"
    ddp = ("dist.ddp", "-j", "2x1", "--script", "train.py")
    handle = command("run", "-s", "ssh", "-cfg", config, *ddp).stdout.strip()
    try:
        missing = re.compile(
            r"rank 0 has entered gloo:all_reduce \(collective \d+ of .*, rank 1 has"
        )
        wait_until(lambda: missing.search(command("stacks", handle).stdout), timeout=90)
        missed = "; rank 1 on box2 was not in the collective: it was in train.py:4 in load"

        def message():
            text = command("status", handle).stdout
            return text.splitlines()[3] if "FAILED after" in text else None

        said = wait_until(message, timeout=90)
        assert said.startswith("  train/0 exited with code 1: RuntimeError: "), said
        assert said.endswith(f" (rank 0 on box1){missed}"), said
    finally:
        command("cancel", handle)
