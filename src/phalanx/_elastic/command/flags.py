"""The flags of `phalanx torchrun`, which are torchrun's: their names, defaults and help. Data."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from phalanx._elastic.command.numa import KINDS


@dataclass(frozen=True)
class Flag:
    """A flag: its long name, what it is when nobody sets it, and how its text is read."""

    name: str
    default: Any
    metavar: str
    """Empty for a switch."""
    help: str
    read: Callable[[str], Any] = str
    short: str = ""
    by_environment: bool = True

    @property
    def dest(self) -> str:
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        return f"PET_{self.dest.upper()}"

    @property
    def option_strings(self) -> list[str]:
        """The short one, and both spellings."""
        every = [f"-{self.short}"] if self.short else []
        return list(dict.fromkeys([*every, f"--{self.name}", f"--{self.dest}"]))


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number.") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number.") from None


def switch(text: str) -> bool:
    """What a variable says of a flag without a value."""
    try:
        return bool(int(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: must be 1 or 0.") from None


def _one_of(*known: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(f"{text!r}: choose one of {', '.join(known)}.")
        return text

    return read


def _texts(text: str) -> list[str]:
    """Texts between commas; two commas are one that belongs to a text."""
    return [part.replace("\0", ",") for part in text.replace(",,", "\0").split(",")]


GROUPS: dict[str, tuple[Flag, ...]] = {
    "workers": (
        Flag("nnodes", "1:1", "N", "number of hosts: N or MIN:MAX (default: 1:1)"),
        Flag("nproc-per-node", "1", "N", "workers on this host: N, auto, cpu or gpu (default: 1)"),
    ),
    "rendezvous": (
        Flag(
            "standalone", False, "", "run on one host with a free port; ignores other --rdzv flags"
        ),
        Flag(
            "rdzv-backend",
            "static",
            "NAME",
            "rendezvous backend: static, c10d (tcp), etcd or a plugin (default: static)",
        ),
        Flag(
            "rdzv-endpoint",
            "",
            "HOST:PORT",
            "rendezvous endpoint; the default port is 29400 for c10d",
        ),
        Flag("rdzv-id", "none", "ID", "job id, the same on all hosts of the job (default: none)"),
        Flag("rdzv-conf", "", "KEY=VALUE,…", "settings of the rendezvous backend"),
        Flag("node-rank", 0, "N", "rank of this host, for static (default: 0)", _whole),
        Flag(
            "master-addr",
            "127.0.0.1",
            "HOST",
            "address of the host of rank 0, for static (default: 127.0.0.1)",
        ),
        Flag(
            "master-port",
            None,
            "PORT",
            "port on the host of rank 0, for static (default: 29500)",
            _whole,
        ),
        Flag(
            "local-addr",
            None,
            "HOST",
            "address of this host for the others (default: its host name)",
        ),
    ),
    "script": (
        Flag("module", False, "", "run SCRIPT as a module, like python -m", short="m"),
        Flag("no-python", False, "", "run SCRIPT as a program, without Python"),
        Flag("run-path", False, "", "run SCRIPT with runpy in a running interpreter"),
        Flag("role", "default", "NAME", "role name of the workers (default: default)"),
        Flag(
            "virtual-local-rank",
            False,
            "",
            "give each worker LOCAL_RANK 0 and a single visible GPU",
        ),
        Flag(
            "numa-binding",
            None,
            "KIND",
            "bind workers to CPUs near their GPUs: node, socket, exclusive or core-complex",
            _one_of(*KINDS),
            by_environment=False,
        ),
        Flag(
            "start-method",
            "spawn",
            "NAME",
            "spawn starts an interpreter per worker; fork and forkserver fork from one that has "
            "imported the packages (default: fork)",
            _one_of("spawn", "fork", "forkserver"),
        ),
    ),
    "restarts and shutdown": (
        Flag(
            "max-restarts", 0, "N", "maximum number of restarts of all workers (default: 0)", _whole
        ),
        Flag(
            "monitor-interval",
            0.1,
            "SECONDS",
            "interval for checking workers (default: 0.1)",
            _number,
        ),
        Flag(
            "heartbeat-timeout",
            None,
            "SECONDS",
            "time without phalanx.heartbeat() after which a worker has hung",
            _number,
        ),
        Flag(
            "host-checks",
            [],
            "CHECKS",
            "check this host before its workers start, and leave the job if it fails: "
            "gpus=8,ecc,disk=20GiB or a plugin's",
            _texts,
        ),
        Flag(
            "host-failures",
            0,
            "N",
            "number of failures on a host after which it is excluded (default: 0, never)",
            _whole,
        ),
        Flag(
            "signals-to-handle",
            "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
            "NAMES",
            "signals to forward to workers (default: SIGTERM,SIGINT,SIGHUP,SIGQUIT)",
        ),
        Flag(
            "shutdown-timeout",
            None,
            "SECONDS",
            "time between signal and SIGKILL (default: TORCH_ELASTIC_SHUTDOWN_TIMEOUT, or 30)",
            _whole,
        ),
    ),
    "output": (
        Flag(
            "log-dir", None, "DIR", "directory for logs and error files (default: a temporary one)"
        ),
        Flag(
            "redirects",
            "0",
            "WHAT",
            "redirect output to log files: 0 none, 1 stdout, 2 stderr, 3 both, or by local rank: "
            "0:1,12:3 (default: 0)",
            short="r",
        ),
        Flag(
            "tee",
            "0",
            "WHAT",
            "write output to log files and also show it (default: 0)",
            short="t",
        ),
        Flag(
            "local-ranks-filter", "", "RANKS", "local ranks to show on the console (default: all)"
        ),
        Flag(
            "ranks-filter",
            "",
            "RANKS",
            "global ranks to show on the console, as 0,8-11 (default: all)",
        ),
        Flag(
            "duplicate-stdout-filters",
            [],
            "TEXTS",
            "copy stdout lines of --tee that contain any of these (a,b) to filtered_stdout.log",
            _texts,
        ),
        Flag(
            "duplicate-stderr-filters",
            [],
            "TEXTS",
            "likewise for stderr, to filtered_stderr.log",
            _texts,
        ),
        Flag("event-log-handler", "null", "NAME", "event handler: null or console (default: null)"),
        Flag(
            "logs-specs",
            None,
            "NAME",
            "log specs of a package, by their name under torchrun.logs_specs",
            by_environment=False,
        ),
    ),
}

FLAGS = {flag.dest: flag for group in GROUPS.values() for flag in group}
