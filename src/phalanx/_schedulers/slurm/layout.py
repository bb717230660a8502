"""An app's directory on Slurm: which file is what, and what they say.

| file | written by | |
|---|---|---|
| `script.sh` | submit | what was submitted |
| `job.json` | submit | the job's number |
| `token` | submit, the script | the secret by which replicas know each other; for the user alone |
| `control` | replicas, the script | what replicas tell each other: see `_remote.slurm_replica` |
| `replicas/ROLE-N.json` | each replica | how it stands; ROLE is the role's index |
| `logs/ROLE/N/` | each replica | its streams, and the error that it reports |
| `times/` | each replica | when what of its streams was written |
| `stop/` | each replica | the files that `should_stop()` looks for |
| `result` | the script | the app's exit code, once it has ended |
| `slurm.log` | Slurm, srun | what they say, such as why a job was cancelled |
| `workspace/` | submit | the project's copy, if it was copied |
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx._registry import read
from phalanx._schedulers.replicas.request import STREAMS

SCRIPT_FILE = "script.sh"
JOB_FILE = "job.json"
SLURM_LOG = "slurm.log"
RESULT = "result"
CONTROL = "control"
TOKEN = "token"  # noqa: S105 a file's name
REPLICAS = "replicas"
WORKSPACE = "workspace"

_CANCELLED = re.compile(
    r"\*\*\* (JOB|STEP) [\d.+]+ ON \S+ CANCELLED AT \S+(?: DUE TO ([A-Z ]+?))? \*\*\*"
)


@dataclass(frozen=True)
class JobDirectory:
    """The directory of one app."""

    path: Path

    def streams(self, role: str, number: int) -> dict[str, str]:
        """The file of each stream of a replica."""
        directory = self.path / "logs" / role / str(number)
        return {stream: str(directory / f"{stream}.log") for stream in STREAMS}

    def replica(self, role_index: int, number: int) -> dict[str, Any] | None:
        """What a replica has written of itself; None before it has."""
        return read(self.path / REPLICAS / f"{role_index}-{number}.json")

    def job(self) -> str | None:
        """The number of the app's job, where it was noted."""
        found = read(self.path / JOB_FILE)
        return None if found is None else str(found.get("job"))

    def restarts(self) -> int:
        """How often the app has been started anew."""
        try:
            with open(self.path / CONTROL) as file:
                word, _, number = file.readline().partition(" ")
            return int(number) if word == "try" else 0
        except (OSError, ValueError):
            return 0

    def result(self) -> int | None:
        """The app's exit code; None while it has not ended by itself."""
        try:
            return int((self.path / RESULT).read_text())
        except (OSError, ValueError):
            return None

    def last_note(self) -> str | None:
        """Why Slurm ended the job, in its own words; empty for `scancel`, None where it did not."""
        try:
            text = (self.path / SLURM_LOG).read_text(errors="replace")
        except OSError:
            return None
        found = [
            reason
            for what, reason in _CANCELLED.findall(text)
            if what == "JOB" or reason  # a step alone may have been sent any signal
        ]
        return found[-1] if found else None

    def is_requeued(self) -> bool:
        """Whether Slurm may start the job again, as the script asks for."""
        try:
            return "#SBATCH --requeue\n" in (self.path / SCRIPT_FILE).read_text()
        except OSError:
            return False

    def may_run_again(self) -> bool:
        """A failure was written down while Slurm took the job back: only Slurm knows what is true.

        Also where that was an earlier try's end.
        """
        return bool(self.result()) and self.last_note() == "JOB REQUEUE"
