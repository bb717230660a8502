"""`jax.distributed.initialize()` without arguments, in workers on this machine."""

import os
import subprocess
import sys

import pytest

import phalanx

pytest.importorskip("jax")


def gather(*, torch_too=False):
    """What every process has put in, and where JAX has met."""
    if torch_too:
        import torch
        import torch.distributed as dist

        total = torch.ones(1)
        dist.all_reduce(total)
        assert int(total) == dist.get_world_size()
    import jax
    import jax.numpy as jnp
    from jax.experimental import multihost_utils

    jax.distributed.initialize()
    shared = multihost_utils.process_allgather(jnp.array([jax.process_index() + 1]))
    return jax.process_count(), shared.ravel().tolist(), os.environ["JAX_COORDINATOR_ADDRESS"]


@pytest.mark.parametrize("start_method", ["zygote", "spawn"])
@pytest.mark.parametrize("torch_too", [False, True])
def test_workers_find_each_other(start_method, torch_too):
    """With torch's group beside it, at another port."""

    def work():
        return gather(torch_too=torch_too), os.environ["MASTER_PORT"]

    results = phalanx.launch(work, workers_per_host=2, start_method=start_method)
    (found, _), *_ = results
    assert found[:2] == (2, [1, 2])
    assert len({place for (_, _, place), _ in results}) == 1
    assert found[2].rpartition(":")[2] != results.rank(0)[1]


def test_the_coordinator_listens_to_this_machine_alone():
    """Where no other host can come, no port is open to others."""

    def work():
        place = gather()[2]
        if os.environ["RANK"] != "0":
            return None
        port = f"{int(place.rpartition(':')[2]):04X}"
        rows = [line.split() for name in ("tcp", "tcp6") for line in open(f"/proc/net/{name}")]
        return [row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{port}")]

    (listening, _) = phalanx.launch(work, workers_per_host=2)
    assert len(listening) == 1 and listening[0].endswith(f"0100007F:{listening[0][-4:]}")


def test_a_restart_meets_at_another_port(tmp_path):
    """While the last round's may still be on its way out."""

    def work():
        found = gather(torch_too=True)
        (tmp_path / f"{phalanx.context().round}-{os.environ['RANK']}").write_text(found[2])
        if phalanx.context().restart_count < 2 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), 9)
        return found

    results = phalanx.launch(work, workers_per_host=2, max_restarts=2)
    assert [found[:2] for found in results] == [(2, [1, 2])] * 2
    places = [(tmp_path / f"{i}-1").read_text() for i in (1, 2, 3)]
    assert len(set(places)) == 3


def test_a_script_under_torchrun(tmp_path):
    """The workers of `phalanx torchrun` too; static hosts share a port with the store."""
    (tmp_path / "train.py").write_text(
        "import jax, os\njax.distributed.initialize()\n"
        "print('ranks', jax.process_index(), jax.process_count(), "
        "os.environ['JAX_COORDINATOR_ADDRESS'], os.environ['MASTER_PORT'], flush=True)\n"
    )
    ports = [f"{29640 + os.getpid() % 300}"]
    for flags in ([], ["--nnodes", "1", "--master-port", *ports]):
        done = subprocess.run(
            [sys.executable, "-m", "phalanx", "torchrun", *flags, "--nproc-per-node", "2"]
            + ["train.py"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        lines = [line.split() for line in done.stdout.splitlines() if line.startswith("ranks")]
        assert sorted(line[1:3] for line in lines) == [["0", "2"], ["1", "2"]]
        assert lines[0][3] == lines[1][3] and not lines[0][3].endswith(f":{lines[0][4]}")
        if flags:
            assert int(lines[0][3].rpartition(":")[2]) != int(lines[0][4]) + 1


def test_a_worker_in_this_process(script):
    """Also where JAX was imported before."""
    done = script(
        "import jax, phalanx\n"
        "def work():\n"
        "    jax.distributed.initialize()\n"
        "    return jax.process_count()\n"
        "print(phalanx.launch(work, workers_per_host=1, start_method='inline').rank(0))\n"
    )
    assert done.stdout.split() == ["1"], done.stderr


def test_what_the_user_says_of_jax_is_kept():
    """An address of one's own, with our ranks."""

    def work():
        return os.environ["JAX_COORDINATOR_ADDRESS"], "JAX_COORDINATOR_BIND_ADDRESS" in os.environ

    place = {"JAX_COORDINATOR_ADDRESS": "10.0.0.7:1234"}
    assert phalanx.launch(work, extra_env_vars=place).rank(0) == ("10.0.0.7:1234", False)


def test_inside_an_allocation_of_slurm_s(monkeypatch):
    """JAX knows Slurm as well, whose tasks are not our workers."""
    for name, value in {
        "SLURM_JOB_ID": "77",
        "SLURM_JOB_NODELIST": "nowhere",
        "SLURM_STEP_NODELIST": "nowhere",
        "SLURM_STEP_ID": "0",
        "SLURM_NTASKS": "9",
        "SLURM_PROCID": "7",
        "SLURM_LOCALID": "7",
    }.items():
        monkeypatch.setenv(name, value)
    results = phalanx.launch(gather, workers_per_host=2, hostnames=["localhost"])
    assert results.rank(0)[:2] == (2, [1, 2])


def test_nothing_of_jax_is_loaded_where_it_is_not_imported():
    """Nor does a worker without it pay for it."""

    def work():
        return sorted(name for name in sys.modules if name.partition(".")[0] in ("jax", "jaxlib"))

    assert list(phalanx.launch(work, workers_per_host=2)) == [[], []]
