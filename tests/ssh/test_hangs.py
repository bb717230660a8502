"""Workers on other hosts that do not get on."""

import os
import time

import pytest

import phalanx


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
