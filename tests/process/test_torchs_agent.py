"""Our rendezvous in torch's own torchrun, by its entry point: --rdzv-backend phalanx."""

import os
import subprocess
import sys
from pathlib import Path

from tests.cluster.etcd import free_ports

WORK = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
rank, count = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
print("rank", rank, "sum", int(total), flush=True)
if rank == 1 and count < int(sys.argv[1]):
    sys.exit(3)
dist.barrier()
"""


def run_two(directory, fails, *flags):
    """torchrun on two hosts whose second worker fails so many times; (code, stdout, stderr)."""
    (directory / "work.py").write_text(WORK)
    where = ["--rdzv-backend", "phalanx", "--rdzv-endpoint", f"127.0.0.1:{free_ports(1)[0]}"]
    command = [
        Path(sys.executable).with_name("torchrun"),
        *where,
        "--rdzv-id",
        "x",
        "--nnodes",
        "2",
    ]
    hosts = [
        subprocess.Popen(
            [*command, *flags, str(directory / "work.py"), str(fails)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PHALANX_RDZV_TOKEN": "4" * 32},
        )
        for _ in range(2)
    ]
    try:
        said = [host.communicate(timeout=100) for host in hosts]
    finally:
        for host in hosts:
            host.kill()
    return [(host.returncode, *texts) for host, texts in zip(hosts, said, strict=True)]


def test_torchrun_forms_groups_and_restarts_by_our_rendezvous(tmp_path):
    """Two agents of torch's; a worker that fails is started anew with the others."""
    ended = run_two(tmp_path, 1, "--max-restarts", "2")
    assert [code for code, _, _ in ended] == [0, 0], ended
    lines = sorted(line for _, out, _ in ended for line in out.splitlines())
    assert lines == ["rank 0 sum 2"] * 2 + ["rank 1 sum 2"] * 2


def test_a_failure_for_good_is_told_to_the_other_agent(tmp_path):
    """It does not wait for one that will not come again."""
    ended = run_two(tmp_path, 9, "--max-restarts", "0")
    assert [code for code, _, _ in ended] == [1, 1], ended
    assert any("exitcode  : 3" in errors for _, _, errors in ended), ended
