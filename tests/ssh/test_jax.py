"""`jax.distributed.initialize()` without arguments, on hosts that share nothing."""

import os

import pytest

from phalanx.runner import get_runner
from phalanx.specs import AppState

pytest.importorskip("jax")


@pytest.mark.parametrize("torch_too", [False, True])
def test_processes_of_two_hosts_meet(launcher, torch_too):
    """At an address of the first one, beside torch's store."""

    def work():
        if torch_too:
            import torch
            import torch.distributed as dist

            dist.all_reduce(torch.ones(1))
        import jax
        import jax.numpy as jnp
        from jax.experimental import multihost_utils

        jax.distributed.initialize()
        shared = multihost_utils.process_allgather(jnp.array([jax.process_index() + 1]))
        place = os.environ["JAX_COORDINATOR_ADDRESS"].rpartition(":")
        same = place[0] == os.environ["MASTER_ADDR"] and place[2] != os.environ["MASTER_PORT"]
        return jax.process_count(), shared.ravel().tolist(), same

    results = launcher(2, workers=1).run(work)
    assert list(results) == [(2, [1, 2], True)] * 2


def test_an_app_over_two_hosts(cluster, tmp_path):
    """A script under `dist.ddp`."""
    (tmp_path / "train.py").write_text(
        "import jax\njax.distributed.initialize()\n"
        "print('ranks', jax.process_index(), jax.process_count(), flush=True)\n"
    )
    cfg = {"hosts": cluster.names[:2], "ssh_config_file": str(cluster.ssh_config)}
    with get_runner() as runner:
        handle = runner.run_component("dist.ddp", ["-j", "2x1", "train.py"], "ssh", cfg)
        status = runner.wait(handle)
        lines = [line for i in (0, 1) for line in runner.log_lines(handle, replica=i)]
        runner.delete(handle)
    assert status.state is AppState.SUCCEEDED, "\n".join(lines)
    assert sum("ranks" in line and line.endswith(" 2") for line in lines) == 2
