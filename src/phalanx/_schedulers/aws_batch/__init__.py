"""`aws_batch`: apps as jobs of AWS Batch, in a queue that exists already.

| module | |
|---|---|
| `options` | what a user can ask for, checked |
| `names` | pure: an app's id, tags that AWS takes, the ids of children |
| `container` | pure: a role as the properties of a container |
| `command` | pure: what a replica runs, and how it learns its number |
| `request` | pure: an app and its options → a job definition and a job |
| `rights` | the rights that a user needs |
| `service` | all requests to AWS, and what its complaints mean |
| `status` | pure: how an app stands by its jobs |
| `waiting` | pure: why a job waits, by its queue and its compute environments |
| `logs` | what replicas have printed, from CloudWatch |
| `scheduler` | puts them together |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phalanx._schedulers.aws_batch.scheduler import AwsBatchScheduler


def create_scheduler(session_name: str, **kwargs: object) -> AwsBatchScheduler:
    """As the entry points of plugins have it."""
    from phalanx._schedulers.aws_batch.scheduler import AwsBatchScheduler

    return AwsBatchScheduler(session_name, **kwargs)
