"""On a machine with an NVIDIA GPU: NCCL, zygotes without a CUDA context, launchers with one."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import phalanx
from phalanx._agent.stacks import flight_records
from phalanx._elastic.command import numa
from phalanx._system import machine
from tests.process.kernel import Kernel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(machine.gpus() == 0, reason="no NVIDIA GPU is visible"),
]


def sum_on_gpu():
    """As a script for torchrun does it: all GPUs are visible, LOCAL_RANK picks one."""
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    value = torch.ones(1, device=device) * (dist.get_rank() + 1)
    dist.all_reduce(value)
    return value.item(), torch.cuda.device_count(), dist.get_backend()


def test_a_worker_for_each_gpu_with_nccl():
    """`workers_per_host="gpu"`: all are visible to each worker."""
    count = machine.gpus()
    results = list(phalanx.launch(sum_on_gpu, workers_per_host="gpu", backend="nccl"))
    assert results == [(sum(range(1, count + 1)), count, "nccl")] * count


def test_auto_reduces_tensors_of_both_kinds():
    """gloo for the processor's, nccl for the GPU's."""

    def both():
        import torch
        import torch.distributed as dist

        values = [torch.ones(1), torch.ones(1, device=f"cuda:{os.environ['LOCAL_RANK']}")]
        for value in values:
            dist.all_reduce(value)
        return [value.item() for value in values]

    count = machine.gpus()
    assert phalanx.launch(both, workers_per_host="gpu").rank(0) == [count, count]


def test_the_zygote_has_no_cuda_context_and_its_forks_can_make_one():
    """Eight workers on one GPU; none of them was spawned."""

    def look():
        import torch

        parent = f"/proc/{os.getppid()}/fd"
        links = [os.readlink(f"{parent}/{n}") for n in os.listdir(parent)]
        torch.cuda.set_device(0)
        (torch.ones(512, 512, device="cuda") @ torch.ones(512, 512, device="cuda")).sum().item()
        title = Path("/proc/self/cmdline").read_bytes().split(b"\0")[0].decode()
        return [link for link in links if "nvidia" in link], title

    app = phalanx.Launcher(workers_per_host=8).start(look)
    results = list(app.result())
    assert [links for links, _ in results] == [[]] * 8
    agent_log = next(Path("logs").glob("*localhost.log")).read_text()
    assert "workers are forked" in agent_log


def test_a_launch_from_a_process_that_has_initialised_cuda(script):
    """As a notebook has that tried something first. CUDA stays initialised: in a process apart."""
    done = script(
        """
        import phalanx, torch
        torch.ones(1, device="cuda")
        assert torch.cuda.is_initialized()
        def total():
            import torch.distributed as dist
            value = torch.ones(1, device="cuda")
            dist.all_reduce(value)
            return value
        value = phalanx.launch(total, workers_per_host=1, backend="nccl").rank(0)
        print(value.device, value.item())
        """
    )
    assert done.stdout == "cuda:0 1.0\n", done.stderr


def test_a_warm_launcher_gives_the_gpu_back_between_runs(script):
    """Contexts and memory belong to workers, and go with them."""
    done = script(
        """
        import phalanx, torch
        def fill():
            import torch
            torch.empty(1 << 30, dtype=torch.uint8, device="cuda").fill_(1)
            torch.cuda.synchronize()
        with phalanx.Launcher(workers_per_host=2, backend="gloo") as launcher:
            used = []
            for _ in range(5):
                launcher.run(fill)
                free, total = torch.cuda.mem_get_info()
                used.append(total - free)
        print(max(used) - min(used) < 1 << 28)
        """
    )
    assert done.stdout == "True\n", done.stderr


def test_a_cuda_error_comes_home():
    """With its own type and the worker's traceback."""

    def fail():
        import torch

        torch.ones(1, device="cuda:99")

    with pytest.raises(RuntimeError) as caught:
        phalanx.launch(fail, workers_per_host=1)
    assert any("cuda:99" in note for note in caught.value.__notes__)


@pytest.fixture(scope="module")
def notebook():
    """A real kernel."""
    if importlib.util.find_spec("ipykernel") is None:
        pytest.skip("ipykernel is not installed")
    with Kernel() as kernel:
        yield kernel


def test_a_notebook_that_has_initialised_cuda(notebook):
    """The function lives in its cell."""
    shown = notebook.run("import torch; torch.ones(1, device='cuda'); print('ready')")
    assert shown == "ready\n"
    shown = notebook.run(
        "import phalanx\n"
        "def total():\n"
        "    import torch.distributed as dist\n"
        "    value = torch.ones(1, device='cuda:0')\n"
        "    dist.all_reduce(value)\n"
        "    return value.item()\n"
        "print(phalanx.launch(total, workers_per_host=1, backend='nccl').rank(0))"
    )
    assert shown == "1.0\n"


def test_apps_wait_for_gpus_that_others_have(tmp_path, monkeypatch):
    """None is given to two; what cannot be given at all is refused."""
    from phalanx.runner import get_runner
    from phalanx.specs import AppDef, AppState, Resource, Role
    from tests.conftest import wait_until

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    have = machine.gpus()
    show = 'echo "${CUDA_VISIBLE_DEVICES-none}"'

    def app(command, gpus, replicas=1):
        resource = Resource(cpu=1, gpu=gpus, memMB=1)
        args = ["-c", command.replace("$", "$$")]
        role = Role("r", entrypoint="sh", args=args, num_replicas=replicas, resource=resource)
        return AppDef("gpus", [role])

    with get_runner() as runner:
        first = runner.run(app(f"{show}; sleep 600", have))
        wait_until(lambda: list(runner.log_lines(first)))
        second = runner.run(app(show, 1))
        wait_until(lambda: "waiting for 1 GPUs" in runner.status(second).message)
        assert runner.status(second).state is AppState.PENDING
        unasked = runner.run(app(show, 0))
        assert runner.wait(unasked).state is AppState.SUCCEEDED
        runner.cancel(first)
        assert runner.wait(second).state is AppState.SUCCEEDED
        assert len(list(runner.log_lines(first))[0].split(",")) == have
        assert list(runner.log_lines(second)) == ["0"]
        too_many = runner.run(app(show, 1, replicas=have + 1))
        status = runner.wait(too_many)
        assert status.state is AppState.FAILED
        assert f"it needs {have + 1} GPUs, but there are {have}" in status.message
        cfg = {"auto_set_cuda_visible_devices": False}
        shared = runner.run(app(show, 1, replicas=have + 1), cfg=cfg)
        assert runner.wait(shared).state is AppState.SUCCEEDED
        third = runner.run(app("sleep 600", have))
        wait_until(lambda: runner.status(third).state is AppState.RUNNING)
        waiting = runner.run(app(show, 1))
        wait_until(lambda: "waiting for" in runner.status(waiting).message)
        runner.cancel(waiting)
        assert runner.status(waiting).state is AppState.CANCELLED
        runner.cancel(third)


def test_hosts_are_checked_with_the_driver_s_own_word():
    """As many GPUs as there are pass; one more does not."""
    have = machine.gpus()
    checks = [f"gpus={have}", "ecc", "disk", "clock"]
    assert list(phalanx.launch(int, workers_per_host=1, host_checks=checks)) == [0]
    with pytest.raises(phalanx.PhalanxError, match="gpus"):
        phalanx.launch(int, workers_per_host=1, host_checks=[f"gpus={have + 1}"])


def test_a_collective_of_nccl_is_read_from_the_flight_recorder():
    """By its name and number, also while the GPU is busy before it."""

    def wait_in_one():
        import torch
        import torch.distributed as dist
        from torch._C._distributed_c10d import _dump_nccl_trace_json

        value = torch.ones(1, device="cuda")
        dist.all_reduce(value)
        torch.cuda.synchronize()
        torch.cuda._sleep(1 << 31)
        dist.all_reduce(value)
        dump = _dump_nccl_trace_json()
        torch.cuda.synchronize()
        return dump

    dump = phalanx.launch(wait_in_one, workers_per_host=1, backend="nccl").rank(0)
    (last,) = flight_records.parse(dump)
    assert (last.name, last.number, last.is_done) == ("nccl:all_reduce", 2, False)


def test_workers_are_bound_to_the_processors_near_their_gpu(script):
    """`--numa-binding node`, on this machine's own nodes."""
    path = script.write("import os\nprint(sorted(os.sched_getaffinity(0)))\n")
    words = ["-m", "phalanx", "torchrun", "--standalone", "--nproc-per-node", "1"]
    done = subprocess.run(
        [sys.executable, *words, "--numa-binding", "node", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    allowed = os.sched_getaffinity(0)
    (bound,) = numa.choose("node", 1, os.environ, allowed)
    assert done.stdout == f"{list(bound)}\n", done.stderr
