"""A scheduler that lends hosts, each a command that runs another one on this machine.

It is told what to do by files in its directory: hosts are lent once `granted` is there; a host NAME
is down while `down-NAME` is, and does not answer while `slow-NAME` is. What it was asked for is in `log`, one line each.

With the option `together`, hosts can be started together: see `group_command`.
"""

import sys

import threading
from dataclasses import dataclass
from pathlib import Path

from phalanx.errors import SchedulerError
from phalanx.schedulers import (
    Capabilities,
    GroupCommand,
    Lease,
    LeasePhase,
    LeaseStatus,
    LentHost,
    Scheduler,
    option,
)

_RUN = """
place="${0%/down-*}" name="${0##*/down-}"
if test -e "$place/slow-$name"; then touch "$place/asked-$name"; cat >/dev/null; fi
test ! -e "$0" || { echo "$0" >&2; exit 1; }
export PIPE_HOST="$name"
"$@"
exit $?
"""


@dataclass(frozen=True)
class PipeOptions:
    """Where its files are."""

    place: str = option(help="the directory with its files")
    refuse: str = option("", help="why nothing is lent")
    tasks: int | None = option(None, help="workers for each host")
    together: bool = option(False, help="hosts can be started together")


class PipeLease(Lease):
    """Hosts n1, n2, …"""

    id = "job 1"

    def __init__(self, request):
        self._options = request.options
        self._place = Path(request.options.place)
        self._names = [f"n{i}" for i in range(1, request.num_hosts + 1)]
        self._count = request.num_hosts
        self._ended = ""
        self._lock = threading.Lock()
        self.log(f"lend {request.num_hosts} {request.name}")

    def log(self, line):
        with (self._place / "log").open("a") as file:
            file.write(f"{line}\n")

    def status(self):
        if self._ended or (self._place / "taken").exists():
            return LeaseStatus(LeasePhase.ENDED, reason=self._ended or "TimeLimit")
        if not (self._place / "granted").exists():
            return LeaseStatus(LeasePhase.WAITING, state="PENDING", reason="Resources")
        return LeaseStatus(LeasePhase.READY, tuple(map(self._host, self._names)))

    def _host(self, name):
        command = ("sh", "-c", _RUN, f"{self._place}/down-{name}")
        group = None
        if self._options.together:
            program = str(Path(__file__).with_name("group_command.py"))
            words = (sys.executable, program, str(self._place), "{hosts}")
            group = GroupCommand(words, "PIPE_HOST", (("ALONE", "{host}"), ("PIPE_GROUP", None)))
        return LentHost(name, command, tasks=self._options.tasks, group=group)

    def replace(self, name):
        with self._lock:
            self._count += 1
            self._names[self._names.index(name)] = f"n{self._count}"
        self.log(f"replace {name}")
        return True

    def give_back(self):
        with self._lock:
            if not self._ended:
                self._ended = "given back"
                self.log("give back")


class PipeScheduler(Scheduler):
    """Lends hosts, and runs no apps."""

    options = PipeOptions
    capabilities = Capabilities(lends_hosts=True)

    def lend(self, request):
        if request.options.refuse:
            raise SchedulerError(request.options.refuse)
        return PipeLease(request)

    def _no_apps(self, *_, **__):
        raise NotImplementedError

    dryrun = submit = describe = list = logs = cancel = delete = _no_apps


def create_scheduler(session_name, **kwargs):
    """As an entry point has it."""
    return PipeScheduler(session_name, **kwargs)
