"""All calls of Slurm's commands: with explicit fields, and questions at most once a second.

However many threads of a process wait for however many jobs, they share one answer: `jobs` asks
`squeue` once for all that anybody wants to know of. Whatever is asked (`squeue`, `sacct`, `scontrol
ping`) waits for the one turn that there is each second: `_question`. A controller that does not
answer is asked again only after a while; that is a fact to be told, not an error.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from phalanx._core.environment import users
from phalanx._core.ranks import RANK_VARIABLES
from phalanx._logs import logger
from phalanx._specs import AppState
from phalanx.errors import ConfigError, SchedulerError

INTERVAL = 1.0
"""Seconds between two questions."""
WHILE_DOWN = 3.0
"""Seconds between two while nobody answers."""
_WANTED = 60.0
"""Seconds for which a job is asked for that nobody has wanted to know of again."""
_PATIENCE = 15.0
"""Seconds for a command to answer a question."""
_SUBMIT_PATIENCE = 120.0
UNREACHABLE_FOR = 60.0
"""Seconds for a controller that does not answer to be there again, while it is asked for nodes."""

_RUNNING = {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"}
_PENDING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"}
_PENDING |= {"RESV_DEL_HOLD"}
_SQUEUE_FIELDS = ("%i", "%T", "%r", "%N", "%P")
_SACCT_FIELDS = ("JobID", "State", "Reason", "NodeList", "Partition")
DOWN = re.compile(
    "Unable to contact slurm controller|connection failure|Connection refused|timed out",
    re.IGNORECASE,
)
"""How commands say that nobody answers."""
_NOT_CANCELLED = "Kill job error"
"""How scancel says so where its exit code does not: it could not resolve the controller's name."""
_UNCONFIGURED = re.compile(
    "establish a? ?configuration source|_establish_config_source|process configuration file",
    re.IGNORECASE,
)
"""How commands say that they do not know of any controller."""
_NOT_THERE = re.compile(r"Invalid job id specified", re.IGNORECASE)


@dataclass(frozen=True)
class JobState:
    """What Slurm says of a job, or of one component of a heterogeneous one."""

    state: str
    """In Slurm's word, such as `PENDING` or `NODE_FAIL`."""
    reason: str = ""
    """Why it waits or has ended, in Slurm's word; empty where there is none."""
    nodes: str = ""
    """Its hosts, as Slurm writes lists of them."""
    partition: str = ""
    """Where it waits or runs."""

    @property
    def app_state(self) -> AppState:
        """The same in our terms."""
        if self.state in _PENDING:
            return AppState.PENDING
        if self.state in _RUNNING:
            return AppState.RUNNING
        if self.state == "COMPLETED":
            return AppState.SUCCEEDED
        return AppState.CANCELLED if self.state == "CANCELLED" else AppState.FAILED


class ControllerUnreachable(Exception):
    """Nobody answers; the text is Slurm's own."""


def parse_jobs(text: str) -> dict[str, JobState]:
    """Lines of `|`-separated fields, as asked for, by job. Pure.

    Of a heterogeneous job (`12+0`, `12+1`) the component that tells most: one that has failed,
    else one that has not ended, else the first.
    """
    found: dict[str, list[JobState]] = {}
    for line in text.splitlines():
        fields = [part.strip() for part in line.split("|")]
        if len(fields) != len(_SQUEUE_FIELDS) or not fields[0][:1].isdigit():
            continue
        number, state, reason, nodes, partition = fields
        state = state.partition(" ")[0].rstrip("+")  # sacct: "CANCELLED by 1000"
        reason = "" if reason in ("None", "Unknown", "") else reason
        nodes = "" if nodes.startswith(("None", "(null)")) else nodes
        job = JobState(state, reason, nodes, partition)
        found.setdefault(re.split(r"[+.]", number)[0], []).append(job)
    return {number: min(parts, key=_weight) for number, parts in found.items()}


def _is_final(job: JobState | None) -> bool:
    return job is not None and job.app_state.is_final


def _weight(job: JobState) -> int:
    order = [AppState.FAILED, AppState.CANCELLED, AppState.RUNNING, AppState.PENDING]
    return order.index(job.app_state) if job.app_state in order else len(order)


@dataclass
class _Answers:
    """What is known, shared by all threads."""

    wanted: dict[str, float] = field(default_factory=dict)
    """Jobs that are asked for, and when somebody last wanted to know of them."""
    known: dict[str, JobState | None] = field(default_factory=dict)
    """None for jobs that Slurm does not know any more."""
    problem: str = ""
    """Why there was no answer the last time."""
    good_until: float = 0.0
    """When it is time to ask again."""


class Controller:
    """Slurm, as its commands show it. One for the whole process: see `controller()`."""

    def __init__(self, run: Callable[..., subprocess.CompletedProcess[str]] | None = None) -> None:
        """Nothing is asked."""
        self._run = run or _run
        self._lock = threading.Lock()
        """For what is known: never held while somebody waits."""
        self._answers = _Answers()
        self._asking = threading.Lock()
        """Held by whoever asks, or waits for the turn to: the others wait for the same answer."""
        self._turn = 0.0
        """When the next question may be asked."""
        self._is_up = False
        self._is_up_until = 0.0
        """How long the answer to the last ping, `_is_up`, is taken for true."""

    # ── questions ─────────────────────────────────────────────────────────────

    def jobs(self, numbers: Iterable[str]) -> dict[str, JobState | None]:
        """The states of jobs; None for those that Slurm does not know any more.

        Blocks for an answer that is at most a second old. Raises `ControllerUnreachable`.
        """
        wanted = list(dict.fromkeys(numbers))
        if not wanted:
            return {}
        if (found := self._current(wanted)) is not None:
            return found
        with self._asking:
            if (found := self._current(wanted)) is not None:
                return found  # of somebody who has asked meanwhile
            self._ask({*wanted})
            with self._lock:
                if self._answers.problem:
                    raise ControllerUnreachable(self._answers.problem)
                return {n: self._answers.known.get(n) for n in wanted}

    def expect(self, numbers: Iterable[str]) -> None:
        """Somebody is about to want to know of jobs: the next question is for them, too."""
        now = time.monotonic()
        with self._lock:
            self._answers.wanted.update(dict.fromkeys(numbers, now))

    def _current(self, wanted: Sequence[str]) -> dict[str, JobState | None] | None:
        """What is known of jobs, if it is all and new enough. Raises `ControllerUnreachable`."""
        self.expect(wanted)
        with self._lock:
            answers = self._answers
            if time.monotonic() >= answers.good_until:
                return None
            if answers.problem:
                raise ControllerUnreachable(answers.problem)
            known = {n: answers.known[n] for n in wanted if n in answers.known}
            return known if len(known) == len(wanted) else None

    def find(self, name: str) -> str | None:
        """The number of the user's job of a name. Raises `ControllerUnreachable`."""
        with self._asking:
            done = self._question("squeue", "-h", "--states=all", f"--name={name}", "-o", "%i")
        if done.returncode:
            raise ControllerUnreachable(_reason(done.stderr))
        numbers = [line.strip().partition("+")[0] for line in done.stdout.splitlines()]
        return numbers[0] if numbers else None

    def _ask(self, wanted: set[str]) -> None:
        """Ask for these jobs and all that others want to know of, and for no others any more."""
        answers = self._answers
        with self._lock:
            last = time.monotonic() - _WANTED
            answers.wanted = {
                n: when for n, when in answers.wanted.items() if when >= last or n in wanted
            }
            answers.known = {n: job for n, job in answers.known.items() if n in answers.wanted}
            asked, before = sorted(answers.wanted), dict(answers.known)
        try:
            # squeue would try for many seconds to reach one that is not there.
            if answers.problem and not self._answers_again():
                raise ControllerUnreachable(answers.problem)
            found = self._ask_queue(asked)
        except ControllerUnreachable as error:
            with self._lock:
                answers.problem = str(error)
                answers.good_until = time.monotonic() + WHILE_DOWN
            return
        lost = [n for n in asked if n not in found and not _is_final(before.get(n))]
        found |= self._ask_accounting(lost)
        with self._lock:
            answers.problem = ""
            answers.good_until = time.monotonic() + INTERVAL
            # It may have become something else, unseen, since it was known.
            answers.known |= {**dict.fromkeys(lost), **found}

    def _ask_queue(self, numbers: Sequence[str]) -> dict[str, JobState]:
        jobs, fields = f"--jobs={','.join(numbers)}", "|".join(_SQUEUE_FIELDS)
        done = self._question("squeue", "-h", "--states=all", jobs, "-o", fields)
        if done.returncode and not _NOT_THERE.search(done.stderr):
            raise ControllerUnreachable(_reason(done.stderr))
        return parse_jobs(done.stdout)

    def _answers_again(self) -> bool:
        """A controller that was down is there, by a ping that all who wait share."""
        if time.monotonic() >= self._is_up_until:
            try:
                self._is_up = " is UP" in self._question("scontrol", "ping").stdout
            except ControllerUnreachable:
                self._is_up = False
            self._is_up_until = time.monotonic() + (INTERVAL if self._is_up else WHILE_DOWN)
        return self._is_up

    def _ask_accounting(self, numbers: Sequence[str]) -> dict[str, JobState]:
        """Of jobs that the controller has forgotten, where there is a database that has not."""
        if not numbers or not shutil.which("sacct"):
            return {}
        fields = f"--format={','.join(_SACCT_FIELDS)}"
        try:
            done = self._question("sacct", "-n", "-P", "-X", f"--jobs={','.join(numbers)}", fields)
        except ControllerUnreachable:
            return {}
        return parse_jobs(done.stdout) if done.returncode == 0 else {}

    def _question(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Ask Slurm when it is time to; `_asking` is held. Raises `ControllerUnreachable`.

        Every question goes through here: no two begin within a second.
        """
        time.sleep(max(0.0, self._turn - time.monotonic()))
        self._turn = time.monotonic() + INTERVAL
        try:
            return self._run(command, timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            raise ControllerUnreachable(f"{command[0]} did not answer in {_PATIENCE:g} s") from None
        except FileNotFoundError:
            raise _no_slurm(command[0]) from None

    # ── requests ──────────────────────────────────────────────────────────────

    def submit(self, name: str, script: str, directory: str) -> str:
        """Submit a batch script, of a job of this name; gives its number. Raises `SchedulerError`.

        A controller that does not answer is waited for, a while.
        """
        limit: float | None = None
        while True:
            try:
                # It may have heard before, and not been able to say so.
                if limit is not None and (number := self.find(name)) is not None:
                    return number
                return self._submit(script, directory)
            except ControllerUnreachable as error:
                if limit is None:
                    limit = time.monotonic() + UNREACHABLE_FOR
                    logger.warning(
                        "phalanx: Slurm does not answer (%s); trying for %.0f s",
                        error,
                        UNREACHABLE_FOR,
                    )
                if not self._is_back(limit):
                    raise SchedulerError(
                        f"Slurm does not answer: {error}. See: scontrol ping"
                    ) from None

    def _submit(self, script: str, directory: str) -> str:
        try:
            done = self._run(
                ("sbatch", "--parsable", script), timeout=_SUBMIT_PATIENCE, cwd=directory
            )
        except FileNotFoundError:
            raise _no_slurm("sbatch") from None
        except subprocess.TimeoutExpired:
            raise ControllerUnreachable(f"sbatch did not end in {_SUBMIT_PATIENCE:g} s") from None
        number = done.stdout.strip().partition(";")[0]
        if done.returncode or not number.isdigit():
            reason = _reason(done.stderr or done.stdout)
            if DOWN.search(reason):
                raise ControllerUnreachable(reason)
            raise SchedulerError(unconfigured(reason) or f"Slurm refused the job: {reason}")
        return number

    def _is_back(self, limit: float) -> bool:
        """Wait until it answers; False if it has not until then."""
        while time.monotonic() < limit:
            with self._asking:
                if self._answers_again():
                    return True
            time.sleep(min(INTERVAL, max(0.0, limit - time.monotonic())))
        return False

    def cancel(self, number: str) -> None:
        """Have a job end. Raises `SchedulerError`, not for one that has ended."""
        try:
            done = self._run(("scancel", number), timeout=_PATIENCE)
        except FileNotFoundError:
            raise _no_slurm("scancel") from None
        except subprocess.TimeoutExpired:
            raise SchedulerError(f"Slurm did not answer in {_PATIENCE:g} s.") from None
        failed = done.returncode or _NOT_CANCELLED in done.stderr
        if failed and not _NOT_THERE.search(done.stderr):
            raise SchedulerError(f"Slurm cannot cancel job {number}: {_reason(done.stderr)}")
        # What was known of it is not true any more, nor what is being asked.
        with self._asking, self._lock:
            self._answers.known.pop(number, None)


def controller() -> Controller:
    """The one that this process's threads share; another cluster, by its configuration, has
    another.
    """
    return _controller_of(os.environ.get("SLURM_CONF"))


@functools.cache
def _controller_of(_configuration: str | None) -> Controller:
    return Controller()


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What a job is submitted with: the user's variables, not those of a job or worker that this
    process is part of.
    """
    kept = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT", "SLURM_CONF_SERVER")
    return {
        name: value
        for name, value in users(environ).items()
        if name not in RANK_VARIABLES
        and (name in kept or not name.startswith(("SLURM_", "SLURMD_", "SRUN_")))
    }


def _run(command: Sequence[str], **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        command,
        capture_output=True,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        env=environment(os.environ),
        check=False,
        **options,
    )


def unconfigured(said: str) -> str:
    """What to say where commands of Slurm know of no controller; empty where they do."""
    if not _UNCONFIGURED.search(said):
        return ""
    return (
        "Slurm has no configuration here: there is no slurm.conf, and no controller gives one. Run "
        f"this on a login node of the cluster, or name its slurm.conf in SLURM_CONF. ({said})"
    )


def _no_slurm(command: str) -> ConfigError:
    return ConfigError(f"{command} is not installed here: run this on a login node of the cluster.")


def _reason(text: str) -> str:
    """Slurm's own words, in one line: the last of its errors, which says what it came to, and the
    first where that has more to it.
    """
    lines = [re.sub(r"^\w+: (error: )?", "", line).strip() for line in text.splitlines()]
    said = list(dict.fromkeys(line for line in lines if line and not line.startswith("Try ")))
    said = [re.sub(r"^Batch job submission failed: ", "", line) for line in said]
    return "; ".join(reversed(said[:3])) if said else "it gave no reason"
