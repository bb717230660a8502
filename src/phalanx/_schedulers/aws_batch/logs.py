"""What replicas have printed, from CloudWatch.

A replica has a log stream for each attempt. The service takes 25 requests for events a second from
all of an account's users in a region, so one who follows asks once a second, and waits longer while
nothing comes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from phalanx._schedulers.aws_batch.options import DEFAULT_LOG_GROUP
from phalanx._schedulers.aws_batch.service import Service
from phalanx._schedulers.aws_batch.status import state_of
from phalanx._schedulers.patience import Patience
from phalanx._schedulers.scheduler import LogLine
from phalanx.errors import SchedulerUnreachable

_POLL = 1.0
_LONGEST_POLL = 5.0
_SETTLED = 2
"""Empty answers after a replica's end that mean that nothing more comes: events arrive late."""
_LAST = 50
"""Events in which the cause of a failure is looked for."""


def streams_of(job: Mapping[str, Any]) -> list[str]:
    """The log streams of a replica's attempts, the latest last. Pure."""
    attempts = [attempt.get("container") or {} for attempt in job.get("attempts") or ()]
    found = [one.get("logStreamName") for one in (*attempts, job.get("container") or {})]
    return list(dict.fromkeys(name for name in found if name))


def group_of(job: Mapping[str, Any]) -> str:
    """The log group of a replica. Pure."""
    config = (job.get("container") or {}).get("logConfiguration") or {}
    return str((config.get("options") or {}).get("awslogs-group") or DEFAULT_LOG_GROUP)


def last_output(service: Service, job: Mapping[str, Any]) -> str:
    """The end of what a replica has printed."""
    streams = streams_of(job)
    if not streams:
        return ""
    events, _ = service.log_events(group_of(job), streams[-1], limit=_LAST, startFromHead=False)
    return "\n".join(str(event["message"]) for event in events)


@dataclass(frozen=True)
class ReplicaLog:
    """The output of one replica."""

    service: Service
    role: str
    replica: int
    find: Callable[[], Mapping[str, Any] | None]
    """Its job as it stands now; None where it has not begun."""
    has_ended: Callable[[], bool]
    """The app has ended, for a replica that never began."""

    def read(self, since: float | None, until: float | None, *, follow: bool) -> Iterator[LogLine]:
        """Its lines; with `follow`, until nothing more can come."""
        times: dict[str, int] = {}
        if since is not None:
            times["startTime"] = max(0, round(since * 1000))
        if until is not None:
            times["endTime"] = round(until * 1000) + 1
        tokens: dict[str, str | None] = {}
        empty, pause, patience = 0, _POLL, Patience()
        while True:
            came = False
            try:
                job = self.find()
                over = self.has_ended() if job is None else state_of(job).is_final
                for stream in () if job is None else streams_of(job):
                    for line in self._new_lines(group_of(job or {}), stream, tokens, times):
                        came = True
                        yield line
            except SchedulerUnreachable as error:
                if not follow:
                    raise
                patience.bear(error)
                time.sleep(pause)
                continue
            patience.answered()
            empty = 0 if came or not over else empty + 1
            past = until is not None and time.time() > until + _LONGEST_POLL
            if not follow or empty >= _SETTLED or (past and not came):
                return
            pause = _POLL if came or over else min(_LONGEST_POLL, pause * 1.5)
            time.sleep(pause)

    def _new_lines(
        self, group: str, stream: str, tokens: dict[str, str | None], times: Mapping[str, int]
    ) -> Iterator[LogLine]:
        while True:
            before = tokens.get(stream)
            events, token = self.service.log_events(
                group, stream, before, startFromHead=True, **times
            )
            tokens[stream] = token
            for event in events:
                if event["timestamp"] >= times.get("endTime", math.inf):
                    continue
                text = str(event["message"]).rstrip("\r\n")
                yield LogLine(self.role, self.replica, text, event["timestamp"] / 1000)
            if token in (None, before):  # the end of what there is
                return
