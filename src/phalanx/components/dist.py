"""Components for distributed PyTorch: every replica is an agent that starts workers."""

from __future__ import annotations

import re
from pathlib import Path

from phalanx import specs
from phalanx._rendezvous.endpoints import STATIC_PORT
from phalanx._specs.app_def import MODULE, SCRIPT
from phalanx.errors import ConfigError
from phalanx.specs import macros

_DEBUG = {
    "CUDA_LAUNCH_BLOCKING": "1",
    "NCCL_DESYNC_DEBUG": "1",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "TORCH_SHOW_CPP_STACKTRACES": "1",
}
_AGENT = ("-m", "phalanx", "torchrun")
# Where the first replica is, and under which address the others see this one, is known only where
# it runs: a shell puts it in. `$$` is a `$`. The first carries the store: no need to find out.
# A port that is free there is known to some schedulers; others have the usual one.
_FREE_PORT = f"$${{PHALANX_RANK0_PORT:-{STATIC_PORT}}}"
_ON_SEVERAL = (
    f'conf="is_host=$$([ {macros.replica_id} = 0 ] && echo 1 || echo 0)$${{1:+,$$1}}"; shift; '
    'exec "$$(command -v python || command -v python3)" -m phalanx torchrun '
    '$${PHALANX_ADDRESS:+--local_addr "$$PHALANX_ADDRESS"} --rdzv_conf "$$conf" %s"$$@"'
)
_AT_RANK_0 = f'--rdzv_endpoint "$${{{macros.rank0_env}:-localhost}}:%s" '


def ddp(
    *script_args: str,
    script: str | None = None,
    m: str | None = None,
    image: str = "",
    name: str = "/",
    h: str | None = None,
    cpu: int = 2,
    gpu: int = 0,
    memMB: int = 1024,  # noqa: N803
    j: str = "1x2",
    env: dict[str, str] | None = None,
    max_retries: int = 0,
    rdzv_port: int | None = None,
    rdzv_backend: str = "c10d",
    rdzv_conf: str | None = None,
    mounts: list[str] | None = None,
    debug: bool = False,
    tee: int = 3,
    rdzv_endpoint: str | None = None,
) -> specs.AppDef:
    """Run a script or module on every worker of every replica, as with torchrun.

    `dist.ddp -j 2x4 --script train.py -- --lr 1` starts 2 replicas with 4 workers each;
    `dist.ddp -j 4 train.py --lr 1` one with 4.

    Args:
        script_args: arguments of the program; the first is the script, unless script or m is given
        script: file to run
        m: module to run
        image: container image, if the scheduler supports images
        name: [EXPERIMENT/]RUN; the run is named after the script by default
        h: named resource per replica, instead of cpu, gpu and memMB
        cpu: CPUs per replica
        gpu: GPUs per replica
        memMB: memory per replica, in MB
        j: [MIN:]REPLICASxWORKERS, such as 1x4 or 2:3x1; or WORKERS on one replica. With MIN,
            the app continues after losing hosts as long as MIN replicas remain
        env: environment variables, as A=1,B=2
        max_retries: maximum number of retries when a replica fails
        rdzv_port: rendezvous port on the first replica; by default a free one if the scheduler
            finds one, else 29500
        rdzv_backend: rendezvous backend
        rdzv_conf: rendezvous settings, as k=v,k2=v2
        mounts: mounts, as type=bind,src=/a,dst=/b[,readonly],type=…
        debug: set the debug variables of torch and NCCL, and CUDA_LAUNCH_BLOCKING
        tee: worker output to show: 0 none, 1 stdout, 2 stderr, 3 both
        rdzv_endpoint: where replicas meet, by default at the first; for rdzv_backend etcd its
            members, as HOST:PORT,HOST2:PORT

    """
    script, script_args = _program("dist.ddp", script, m, script_args)
    if rdzv_backend.startswith("etcd") and not rdzv_endpoint:
        raise ConfigError(
            f"rdzv_backend {rdzv_backend} needs rdzv_endpoint: where etcd is, as HOST:2379."
        )
    least, most, workers = _parse_j(j)
    words = ["--rdzv_backend", rdzv_backend, "--rdzv_id", macros.app_id]
    words += ["--nnodes", str(most) if least == most else f"{least}:{most}"]
    words += ["--nproc_per_node", str(workers), "--tee", str(tee), "--role", ""]
    words += ["--node_rank", macros.replica_id] if rdzv_backend == "static" else []
    words += ["-m", m] if m is not None else [str(script)]
    experiment, run = _names(name)
    role_name = Path(script).stem if script is not None else str(m).rpartition(".")[2]
    variables = {"LOGLEVEL": "WARNING", **(_DEBUG if debug else {}), **(env or {})}
    if experiment:
        variables["PHALANX_EXPERIMENT"] = experiment
    return specs.AppDef(
        name=run or role_name,
        roles=[
            specs.Role(
                name=role_name,
                image=image,
                min_replicas=least if least < most else None,
                entrypoint="python" if most == 1 else "sh",
                args=[
                    *_command(words, most, rdzv_port, rdzv_conf or "", rdzv_endpoint),
                    *script_args,
                ],
                env=variables,
                num_replicas=most,
                max_retries=max_retries,
                resource=specs.resource(cpu=cpu, gpu=gpu, memMB=memMB, h=h),
                port_map={"c10d": rdzv_port or STATIC_PORT} if most > 1 else {},
                mounts=specs.parse_mounts(mounts or ()),
                metadata={MODULE: str(m)} if script is None else {SCRIPT: script},
            )
        ],
    )


def spmd(
    *args: str,
    script: str | None = None,
    m: str | None = None,
    image: str = "",
    name: str = "/",
    h: str = "gpu.small",
    j: str = "1x1",
    env: dict[str, str] | None = None,
    max_retries: int = 0,
    mounts: list[str] | None = None,
    debug: bool = False,
) -> specs.AppDef:
    """Run a single program on multiple data: `dist.ddp` with fewer options.

    Args:
        args: arguments of the program; the first is the script, unless script or m is given
        script: file to run
        m: module to run
        image: container image, if the scheduler supports images
        name: [EXPERIMENT/]RUN; the run is named after the script by default
        h: named resource per replica
        j: [MIN:]REPLICASxWORKERS; or REPLICAS with one worker per GPU
        env: environment variables, as A=1,B=2
        max_retries: maximum number of retries when a replica fails
        mounts: mounts, as type=bind,src=/a,dst=/b[,readonly],type=…
        debug: set the debug variables of torch and NCCL, and CUDA_LAUNCH_BLOCKING

    """
    if re.fullmatch(r"\d+", j):
        j = f"{j}x{max(1, specs.get_named_resources(h).gpu)}"
    return ddp(
        *args,
        script=script,
        m=m,
        image=image,
        name=name,
        h=h,
        j=j,
        env=env,
        max_retries=max_retries,
        mounts=mounts,
        debug=debug,
    )


def _program(
    component: str, script: str | None, m: str | None, args: tuple[str, ...]
) -> tuple[str | None, tuple[str, ...]]:
    if script is not None and m is not None:
        raise ConfigError("give only one of --script and -m.")
    if script is None and m is None:
        if not args:
            raise ConfigError(
                f"missing script, as in: phalanx run {component} -j 1x2 --script train.py"
            )
        return args[0], args[1:]
    return script, args


def _command(
    words: list[str], replicas: int, port: int | None, conf: str, endpoint: str | None
) -> list[str]:
    if replicas == 1:
        # All workers are under one agent: any free port will do.
        more = ["--rdzv_conf", conf] if conf else []
        return [*_AGENT, "--rdzv_endpoint", endpoint or "localhost:0", *more, *words]
    if endpoint is not None:
        words = ["--rdzv_endpoint", endpoint, *words]
    at = "" if endpoint is not None else _AT_RANK_0 % (port or _FREE_PORT)
    return ["-c", _ON_SEVERAL % at, "dist.ddp", conf, *words]


def _parse_j(text: str) -> tuple[int, int, int]:
    """Least and most replicas, and workers for each."""
    found = re.fullmatch(r"(?:(?:(\d+):)?(\d+)x)?(\d+)", text)
    if found is None:
        raise ConfigError(
            f"-j {text!r}: expected [MIN:]REPLICASxWORKERS, such as -j 4, -j 1x4 or -j 2:3x1"
        )
    most = int(found[2] or 1)
    least = int(found[1] or most)
    workers = int(found[3])
    if not 1 <= least <= most or workers < 1:
        raise ConfigError(
            f"-j {text!r}: REPLICAS and WORKERS must be at least 1, and MIN at most REPLICAS. "
            "Examples: -j 4, -j 1x4, -j 2:3x1"
        )
    return least, most, workers


def _names(text: str) -> tuple[str, str]:
    """The experiment and the run of `EXPERIMENT/RUN`."""
    experiment, slash, run = text.rpartition("/")
    return (experiment, run) if slash else ("", text)
