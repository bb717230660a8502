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
    """Empty for one that is known, to be refused, and not shown."""
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
        raise argparse.ArgumentTypeError(f"{text!r} is neither 1 nor 0.") from None


def _one_of(*known: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(known)}.")
        return text

    return read


def _texts(text: str) -> list[str]:
    """Texts between commas; two commas are one that belongs to a text."""
    return [part.replace("\0", ",") for part in text.replace(",,", "\0").split(",")]


GROUPS: dict[str, tuple[Flag, ...]] = {
    "how many": (
        Flag("nnodes", "1:1", "N", "hosts: N, or MIN:MAX (1:1)"),
        Flag("nproc-per-node", "1", "N", "workers on this host: N, auto, cpu or gpu (1)"),
    ),
    "where hosts meet": (
        Flag("standalone", False, "", "one host, on a free port; other --rdzv- flags do not count"),
        Flag("rdzv-backend", "static", "NAME", "static, c10d (tcp), or a plugin's (static)"),
        Flag("rdzv-endpoint", "", "HOST:PORT", "where; port 29400 for c10d"),
        Flag("rdzv-id", "none", "ID", "the same on all hosts of a job, and no other's (none)"),
        Flag("rdzv-conf", "", "K=V,…", "the backend's own settings"),
        Flag("node-rank", 0, "N", "static: which host this is (0)", _whole),
        Flag("master-addr", "127.0.0.1", "HOST", "static: the host of rank 0 (127.0.0.1)"),
        Flag("master-port", None, "PORT", "static: its port (29500)", _whole),
        Flag("local-addr", None, "HOST", "this host's name to others (the one it has)"),
    ),
    "what runs": (
        Flag("module", False, "", "SCRIPT is a module, as with python -m", short="m"),
        Flag("no-python", False, "", "SCRIPT is a program of its own"),
        Flag("run-path", False, "", "SCRIPT is run by an interpreter that is there already"),
        Flag("role", "default", "NAME", "the workers' ROLE_NAME (default)"),
        Flag("virtual-local-rank", False, "", "each worker has LOCAL_RANK 0 and sees one GPU"),
        Flag(
            "numa-binding",
            None,
            "KIND",
            "bind workers near their GPUs: node, socket, exclusive or core-complex (not bound)",
            _one_of(*KINDS),
            by_environment=False,
        ),
        Flag(
            "start-method",
            "spawn",
            "NAME",
            "spawn: a new interpreter for each worker; fork, forkserver: forked from one that has "
            "loaded the packages (forked)",
            _one_of("spawn", "fork", "forkserver"),
        ),
    ),
    "failures and the end": (
        Flag("max-restarts", 0, "N", "how often all workers may be started again (0)", _whole),
        Flag("monitor-interval", 0.1, "SECONDS", "how often to look at workers (0.1)", _number),
        Flag(
            "signals-to-handle",
            "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
            "NAMES",
            "signals that are passed on to workers (SIGTERM,SIGINT,SIGHUP,SIGQUIT)",
        ),
        Flag(
            "shutdown-timeout",
            None,
            "SECONDS",
            "from signal to kill (TORCH_ELASTIC_SHUTDOWN_TIMEOUT, or 30)",
            _whole,
        ),
    ),
    "output": (
        Flag("log-dir", None, "DIR", "for files of output and errors (a temporary one)"),
        Flag(
            "redirects",
            "0",
            "WHAT",
            "to files instead of the console: 1 stdout, 2 stderr, 3 both, or by local rank: "
            "0:1,12:3 (0)",
            short="r",
        ),
        Flag("tee", "0", "WHAT", "the same, to files and the console (0)", short="t"),
        Flag("local-ranks-filter", "", "RANKS", "the console shows these local ranks (all)"),
        Flag("ranks-filter", "", "RANKS", "the console shows these of all ranks, as 0,8-11 (all)"),
        Flag(
            "duplicate-stdout-filters",
            [],
            "TEXTS",
            "lines of --tee with any of these (a,b) also go to filtered_stdout.log",
            _texts,
        ),
        Flag("duplicate-stderr-filters", [], "TEXTS", "the same for stderr", _texts),
        Flag("event-log-handler", "null", "NAME", "where events go (null)"),
        Flag("logs-specs", None, "NAME", "", by_environment=False),  # refused
    ),
}

FLAGS = {flag.dest: flag for group in GROUPS.values() for flag in group}
