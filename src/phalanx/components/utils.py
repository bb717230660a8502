"""Components for everyday things: a command, a Python program, a file."""

from __future__ import annotations

import os
import shlex

from phalanx import specs
from phalanx._specs.app_def import MODULE, SCRIPT
from phalanx.components._texts import program
from phalanx.errors import ConfigError

_MB = 1024


def echo(msg: str = "hello world", image: str = "", num_replicas: int = 1) -> specs.AppDef:
    """Print a message.

    Args:
        msg: what to print
        image: container image, if the scheduler supports images
        num_replicas: number of replicas

    """
    return specs.AppDef(
        name="echo",
        roles=[
            specs.Role(
                name="echo",
                image=image,
                entrypoint="echo",
                args=[msg],
                num_replicas=num_replicas,
                resource=specs.resource(cpu=1),
            )
        ],
    )


def touch(file: str, image: str = "") -> specs.AppDef:
    """Create a file, or update its modification time.

    Args:
        file: path of the file
        image: container image, if the scheduler supports images

    """
    role = specs.Role(
        name="touch",
        image=image,
        entrypoint="touch",
        args=[file],
        resource=specs.resource(cpu=1),
    )
    return specs.AppDef(name="touch", roles=[role])


def sh(
    *args: str,
    image: str = "",
    num_replicas: int = 1,
    cpu: int = 1,
    gpu: int = 0,
    memMB: int = _MB,  # noqa: N803
    h: str | None = None,
    env: dict[str, str] | None = None,
    max_retries: int = 0,
    mounts: list[str] | None = None,
    entrypoint: str | None = None,
) -> specs.AppDef:
    """Run a shell command: `utils.sh echo hi`, `utils.sh 'ls | wc -l'`.

    A single argument is a shell command line; several arguments are quoted. Macros such as
    `${app_id}` are replaced in all arguments: write `$$` for a `$` of the shell before another `$`
    or the name of a macro.

    Args:
        args: the command and its arguments
        image: container image, if the scheduler supports images
        num_replicas: number of replicas
        cpu: CPUs per replica
        gpu: GPUs per replica
        memMB: memory per replica, in MB
        h: named resource, instead of cpu, gpu and memMB
        env: environment variables, as A=1,B=2
        max_retries: maximum number of retries when a replica fails
        mounts: mounts, as type=bind,src=/a,dst=/b[,readonly],type=…
        entrypoint: program to run instead of the shell, with these arguments

    """
    if not args and entrypoint is None:
        raise ConfigError("missing command, as in: phalanx run utils.sh echo hi")
    line = args[0] if len(args) == 1 else shlex.join(args)
    command = ["-c", line] if entrypoint is None else [*args]
    return specs.AppDef(
        name="sh",
        roles=[
            specs.Role(
                name="sh",
                image=image,
                entrypoint=entrypoint or "sh",
                args=command,
                num_replicas=num_replicas,
                resource=specs.resource(cpu=cpu, gpu=gpu, memMB=memMB, h=h),
                env=env or {},
                max_retries=max_retries,
                mounts=specs.parse_mounts(mounts or ()),
            )
        ],
    )


def python(
    *args: str,
    m: str | None = None,
    c: str | None = None,
    script: str | None = None,
    image: str = "",
    name: str = "phalanx_utils_python",
    cpu: int = 1,
    gpu: int = 0,
    memMB: int = _MB,  # noqa: N803
    h: str | None = None,
    num_replicas: int = 1,
) -> specs.AppDef:
    """Run a Python script, module or command.

    `utils.python train.py --lr 1`, `utils.python -m package.train -- --lr 1`,
    `utils.python -c 'print(1)'`.

    Args:
        args: arguments of the program; the first is the script, unless m, c or script is given
        m: module to run
        c: Python code to run
        script: file to run
        image: container image, if the scheduler supports images
        name: app name
        cpu: CPUs per replica
        gpu: GPUs per replica
        memMB: memory per replica, in MB
        h: named resource, instead of cpu, gpu and memMB
        num_replicas: number of replicas

    """
    given = [what for what in (m, c, script) if what is not None]
    if len(given) > 1:
        raise ConfigError("give only one of -m, -c and --script.")
    if not given and not args:
        raise ConfigError("missing script, as in: phalanx run utils.python train.py")
    metadata: dict[str, str] = {}
    if m is not None:
        command = ["-m", m, *args]
        metadata[MODULE] = m
    elif c is not None:
        command = ["-c", c, *args]
    else:
        command = [*([] if script is None else [script]), *args]
        if not command[0].startswith("-"):  # one for the interpreter
            metadata[SCRIPT] = command[0]
    return specs.AppDef(
        name=name,
        roles=[
            specs.Role(
                name="python",
                image=image,
                entrypoint="python",
                num_replicas=num_replicas,
                resource=specs.resource(cpu=cpu, gpu=gpu, memMB=memMB, h=h),
                args=command,
                env={"HYDRA_MAIN_MODULE": m} if m else {},
                metadata=metadata,
            )
        ],
    )


def binary(
    *args: str,
    entrypoint: str,
    name: str = "phalanx_utils_binary",
    num_replicas: int = 1,
    cpu: int = 1,
    gpu: int = 0,
    memMB: int = _MB,  # noqa: N803
    h: str | None = None,
) -> specs.AppDef:
    """Run a program.

    Args:
        args: arguments of the program
        entrypoint: program to run: a path, or a name on PATH
        name: app name
        num_replicas: number of replicas
        cpu: CPUs per replica
        gpu: GPUs per replica
        memMB: memory per replica, in MB
        h: named resource, instead of cpu, gpu and memMB

    """
    return specs.AppDef(
        name=name,
        roles=[
            specs.Role(
                name="binary",
                entrypoint=entrypoint,
                num_replicas=num_replicas,
                resource=specs.resource(cpu=cpu, gpu=gpu, memMB=memMB, h=h),
                args=args,
            )
        ],
    )


def copy(src: str, dst: str, image: str = "") -> specs.AppDef:
    """Copy a file. URLs such as s3://… need fsspec where it runs.

    Args:
        src: file to copy
        dst: destination
        image: container image, if the scheduler supports images

    """
    arguments = [*program("_copy"), src, dst]
    role = specs.Role(
        name="copy",
        image=image,
        entrypoint="python",
        args=arguments,
        resource=specs.resource(cpu=1),
    )
    return specs.AppDef(name="copy", roles=[role])


def hydra(config_name: str, config_dir: str, *overrides: str) -> specs.AppDef:
    """Run an app defined by a Hydra configuration; needs `phalanx[hydra]`.

    The configuration, or its `app`, is an object that Hydra instantiates: `_target_:
    phalanx.specs.AppDef`, or a component such as `_target_: phalanx.components.dist.ddp`.

    Args:
        config_name: name of the configuration
        config_dir: directory of the configuration
        overrides: Hydra overrides, as key=value

    """
    try:
        from hydra import compose, initialize_config_dir
        from hydra.utils import instantiate
    except ImportError:
        raise ConfigError("utils.hydra needs Hydra: pip install 'phalanx[hydra]'") from None
    directory = os.path.abspath(os.path.expanduser(config_dir))
    if not os.path.isdir(directory):
        raise ConfigError(f"no such directory: {config_dir}")
    with initialize_config_dir(config_dir=directory, version_base=None):
        config = compose(config_name=config_name, overrides=list(overrides))
    made = instantiate(config.get("app", config), _convert_="all")
    if not isinstance(made, specs.AppDef):
        raise ConfigError(f"{config_name} in {config_dir} must define an AppDef, not {made!r}.")
    return made
