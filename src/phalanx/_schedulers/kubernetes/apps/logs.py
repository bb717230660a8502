"""What replicas have printed, from the cluster: every line with its time.

The API keeps stdout and stderr together. A pod's log is read until its end; then the next pod of
the replica's is looked for, until the app has ended.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from phalanx._logs.lines import LogLine, Stream
from phalanx._schedulers.kubernetes import names
from phalanx._schedulers.kubernetes.api.cluster import Cluster, NotInCluster
from phalanx._schedulers.kubernetes.apps.seen import ReplicaPod, seen_pod
from phalanx._schedulers.kubernetes.manifest import MAIN
from phalanx._schedulers.patience import Patience
from phalanx._schedulers.replicas.lifecycle import ReplicaKey
from phalanx.errors import SchedulerError, SchedulerUnreachable

_PAUSE = 0.2
_SILENCE = 45.0
"""Seconds without a line after which a log is asked for anew: the connection may be dead."""
_LAST = 200
"""Lines that are looked through for an error."""
_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d) ?")
_NO_LOG = re.compile("is waiting to start|is terminated")
"""What a node says of a container that has not been made yet, or never was before its pod went."""
_PIECE = 1 << 16
_ENTRY = 1 << 14
"""Bytes of a line after which kubelets write the time once more: runtimes keep longer ones so."""


@dataclass
class _Position:
    """How far a pod's log was read: the time of the last line, and how many had that time."""

    stamp: int = 0
    count: int = 0

    def advance(self, stamp: int) -> None:
        self.count = self.count + 1 if stamp == self.stamp else 1
        self.stamp = stamp


@dataclass(frozen=True)
class PodOutput:
    """Whose output is read."""

    app: str
    """The name of its objects."""
    role_word: str
    key: ReplicaKey
    has_app_ended: Callable[[Cluster], bool]

    def read(
        self,
        cluster: Cluster,
        since: float | None,
        until: float | None,
        *,
        follow: bool,
    ) -> Iterator[LogLine]:
        """The lines of all of a replica's pods, one after the other."""
        role, replica = self.key
        for stamp, text in self._all_pods(cluster, since, follow=follow):
            when = stamp / 1e9
            if until is not None and when > until:
                if follow:
                    return
                continue
            if since is None or when >= since:
                yield LogLine(
                    role=role, replica=replica, text=text, time=when, stream=Stream.COMBINED
                )

    def _all_pods(
        self, cluster: Cluster, since: float | None, *, follow: bool
    ) -> Iterator[tuple[int, str]]:
        done: set[str] = set()
        positions: dict[str, _Position] = {}
        is_last_look = False
        patience = Patience()
        while True:
            try:
                pods = [p for p in self._pods(cluster) if p.uid not in done]
                patience.answered()  # a program that is silent for long is no reason to end
                for pod in pods:
                    if pod.is_lost:
                        done.add(pod.uid)  # nobody can read it any more
                        continue
                    if not pod.has_run:
                        if pod.has_ended:
                            done.add(pod.uid)
                            continue
                        break
                    position = positions.setdefault(pod.uid, _Position())
                    yield from _lines(cluster, pod, position, since, follow=follow)
                    if follow and not self._has_ended(cluster, pod):
                        break
                    done.add(pod.uid)
                else:
                    if is_last_look or not follow:
                        return
                if not follow:
                    return
                is_last_look = self.has_app_ended(cluster)
            except SchedulerUnreachable as error:
                if not follow:
                    raise
                patience.bear(error)
            if not is_last_look:
                time.sleep(_PAUSE)

    def _pods(self, cluster: Cluster) -> list[ReplicaPod]:
        chosen = f"{names.APP}={self.app},{names.ROLE}={self.role_word}"
        found = [p for p in map(_seen, cluster.list("pods", chosen)) if p is not None]
        own = [p for p in found if p.replica == self.key[1]]
        return sorted(own, key=lambda p: (p.attempt, p.created, p.name))

    def _has_ended(self, cluster: Cluster, pod: ReplicaPod) -> bool:
        """Its program has; a log may break off before."""
        known = cluster.get("pods", pod.name)
        again = None if known is None else _seen(known)
        return again is None or again.uid != pod.uid or again.has_ended or bool(again.terminated)


def _seen(pod: dict[str, Any]) -> ReplicaPod | None:
    return seen_pod(pod, time.time())


def has_log_ended(cluster: Cluster, pod: ReplicaPod) -> bool:
    """Nobody writes to a pod's log any more, as its kubelet knows; False where it cannot say."""
    if pod.uid in _ended:
        return True
    query = {"container": MAIN, "follow": "true", "tailLines": "0"}
    try:
        with cluster.stream("pods", pod.name, subresource="log", query=query, silence=1) as answer:
            has_ended = not answer.read(1)
    except NotInCluster:
        has_ended = True
    except SchedulerError:
        has_ended = False  # it is silent, and goes on; or its node is
    if has_ended:
        _ended.add(pod.uid)
    return has_ended


_ended: set[str] = set()
"""Pods whose logs have: each is asked for once."""


def last_output(cluster: Cluster, pod: ReplicaPod) -> str:
    """The end of what a pod has printed; empty where that cannot be read any more."""
    query = {"container": MAIN, "tailLines": str(_LAST)}
    try:
        with cluster.stream("pods", pod.name, subresource="log", query=query, silence=10) as answer:
            data: bytes = answer.read()
    except SchedulerError:
        return ""  # how it ended is known all the same
    return data.decode("utf-8", "replace")


def _lines(
    cluster: Cluster, pod: ReplicaPod, position: _Position, since: float | None, *, follow: bool
) -> Iterator[tuple[int, str]]:
    """A pod's lines behind a position, which moves along."""
    query = {"container": MAIN, "timestamps": "true"}
    if follow:
        query["follow"] = "true"
    first = position.stamp / 1e9 if position.stamp else since
    if first is not None:
        query["sinceTime"] = datetime.fromtimestamp(int(first), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    skip = _Position(position.stamp, position.count)
    try:
        with cluster.stream(
            "pods",
            pod.name,
            subresource="log",
            query=query,
            silence=_SILENCE if follow else 60.0,
        ) as answer:
            for raw in _split(answer):
                stamp, text = parse_line(raw)
                stamp = stamp or position.stamp
                if stamp < skip.stamp:
                    continue
                if stamp == skip.stamp and skip.count:
                    skip.count -= 1
                    continue
                position.advance(stamp)
                yield stamp, text
    except NotInCluster:
        return  # it was deleted meanwhile
    except SchedulerError as error:
        if isinstance(error, SchedulerUnreachable) or not _NO_LOG.search(str(error)):
            raise


def _split(answer: Any) -> Iterator[bytes]:
    rest = b""
    for piece in answer.stream(_PIECE):
        *whole, rest = (rest + piece).split(b"\n")
        yield from whole
    if rest:
        yield rest


def parse_line(raw: bytes) -> tuple[int, str]:
    """A line's time, in nanoseconds since 1970, and its text. Pure."""
    found = _STAMP.match(raw)
    if found is None:
        return 0, raw.decode("utf-8", "replace")
    zone = found[3].decode().replace("Z", "+00:00")
    seconds = int(datetime.fromisoformat(found[1].decode() + zone).timestamp())
    fraction = int((found[2] or b"0").ljust(9, b"0")[:9])
    pieces, at = [], found.end()
    while (again := _STAMP.match(raw, at + _ENTRY)) is not None:
        pieces.append(raw[at : at + _ENTRY])
        at = again.end()
    return seconds * 10**9 + fraction, b"".join([*pieces, raw[at:]]).decode("utf-8", "replace")
