"""`slurm`: apps as Slurm jobs, each one batch script.

| module | |
|---|---|
| `options` | what a user can ask for, checked |
| `script` | pure: an app and its options → the batch script |
| `layout` | the app's directory: which file is what, and what they say |
| `controller` | all calls of Slurm's commands, none too often |
| `status` | pure: what the files and Slurm say → how the app stands |
| `workspace_copy` | the project's files, copied for the job |
| `lease` | hosts for launches: one allocation, held while they run |
| `scheduler` | puts them together |

On the hosts runs `_remote.slurm_replica`, which writes the files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phalanx._schedulers.slurm.scheduler import SlurmScheduler


def create_scheduler(session_name: str, **kwargs: object) -> SlurmScheduler:
    """As the entry points of plugins have it."""
    from phalanx._schedulers.slurm.scheduler import SlurmScheduler

    return SlurmScheduler(session_name, **kwargs)
