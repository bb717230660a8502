"""A launcher's fields as arguments of an argparse program."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from phalanx.compat.torchrunx.launcher import DEFAULT_ENV_VARS_FOR_COPY, Launcher
from phalanx.errors import ConfigError

__all__ = ["add_torchrunx_argument_group", "launcher_from_args"]


def add_torchrunx_argument_group(parser: ArgumentParser) -> None:
    """Add `--hostnames`, `--workers-per-host` and the launcher's other fields to a parser."""
    add = parser.add_argument_group("torchrunx").add_argument
    words: dict[str, Any] = {"nargs": "+", "metavar": "NAME"}
    add("--hostnames", default=["auto"], help="hosts, or auto, or slurm", **words)
    add("--workers-per-host", default=["gpu"], help="gpu, cpu, or one or more numbers", **words)
    add("--ssh-config-file", help="ssh configuration file")
    add("--backend", default="nccl", choices=["nccl", "gloo", "mpi", "ucc", "None"])
    add("--worker-timeout", type=int, default=600, help="seconds, of the process group")
    add("--agent-timeout", type=int, default=60, help="seconds that a host may be silent")
    copied = list(DEFAULT_ENV_VARS_FOR_COPY)
    add("--copy-env-vars", default=copied, help="variables to copy, as patterns", **words)
    add("--extra-env-vars", nargs="*", metavar="NAME=VALUE", help="variables to set")
    add("--env-file", help="bash file to source on every host")


def launcher_from_args(args: Namespace) -> Launcher:
    """The launcher that the parsed arguments describe. Raises `ConfigError`."""
    fields = dict(vars(args))
    hostnames, workers = fields["hostnames"], fields["workers_per_host"]
    one_word = len(hostnames) == 1 and hostnames[0] in ("auto", "slurm")
    extra = fields["extra_env_vars"]
    return Launcher(
        hostnames=hostnames[0] if one_word else hostnames,
        workers_per_host=_workers(workers),
        ssh_config_file=fields["ssh_config_file"],
        backend=None if fields["backend"] == "None" else fields["backend"],
        worker_timeout=fields["worker_timeout"],
        agent_timeout=fields["agent_timeout"],
        copy_env_vars=tuple(fields["copy_env_vars"]),
        extra_env_vars=None if extra is None else dict(map(_variable, extra)),
        env_file=fields["env_file"],
    )


def _workers(words: list[str]) -> Any:
    if len(words) == 1 and words[0] in ("cpu", "gpu"):
        return words[0]
    try:
        numbers = [int(word) for word in words]
    except ValueError:
        text = " ".join(words)
        raise ConfigError(
            f"--workers-per-host {text}: must be gpu, cpu, or one or more numbers"
        ) from None
    return numbers[0] if len(numbers) == 1 else numbers


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--extra-env-vars {text}: must be NAME=VALUE")
    return name, value
