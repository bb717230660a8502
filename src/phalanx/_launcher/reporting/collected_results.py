"""From a verdict and what ranks have sent to what the caller gets. Unpickles: on his thread."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from phalanx._core.rounds import Outcome
from phalanx._core.stacks import RankStacks
from phalanx._launcher.payload import Inbox
from phalanx._launcher.reporting.report import TraceShown, make_exception
from phalanx._launcher.result import LaunchResult
from phalanx._rendezvous.protocol import Reason, Verdict
from phalanx.errors import ResultError


class CollectedResults:
    """What has come home of an app."""

    def __init__(
        self,
        verdict: Verdict,
        inboxes: Mapping[int, Inbox],
        outcomes: Collection[Outcome],
        stopped_at: Mapping[int, RankStacks] | None = None,
    ) -> None:
        """By global rank of the last round; `stopped_at`: where those were that were stopped."""
        self._verdict = verdict
        self._inboxes = inboxes
        self._outcomes = outcomes
        self._stopped_at = stopped_at or {}

    def result(self) -> LaunchResult[Any]:
        """Every rank's value. Raises `ResultError`."""
        ranks = sorted(rank for member in self._verdict.members for rank in member.ranks)
        values = tuple(self.value(rank) for rank in ranks)
        return LaunchResult(values, self._verdict.members)

    def has(self, rank: int) -> bool:
        """A rank has sent something."""
        return rank in self._inboxes

    def value(self, rank: int) -> Any:
        """The value of a rank. Raises `ResultError`."""
        member = next(m for m in self._verdict.members if rank in m.ranks)
        if rank not in self._inboxes:
            raise ResultError(
                f"the value of rank {rank} on {member.hostname} did not arrive: its temporary "
                "files there were removed.",
                rank=rank,
                hostname=member.hostname,
                type_name="",
            )
        try:
            return self._inboxes[rank].load()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise ResultError(
                f"the value of rank {rank} on {member.hostname} cannot be unpickled here: "
                f"{type(error).__name__}: {error}",
                rank=rank,
                hostname=member.hostname,
                type_name="",
            ) from error

    def exception(
        self,
        log_files: Mapping[int, Path],
        running: Collection[int],
        start_timeout: float,
        waits: Mapping[str, str],
        trace: TraceShown,
        *,
        cut_off: Collection[int] = (),
    ) -> BaseException:
        """What to raise for a verdict that is not success; `cut_off` are agents that had started,
        and were lost without a word.
        """
        return make_exception(
            self._verdict,
            self._verdict.members,
            log_files,
            self._load_exception,
            returned=tuple(o.rank for o in self._outcomes if o.succeeded),
            running=running,
            start_timeout=start_timeout,
            stopped_at=self._stopped_at,
            waits=waits,
            trace=trace,
            cut_off=cut_off,
        )

    @property
    def succeeded(self) -> bool:
        """There are values."""
        return self._verdict.reason is Reason.SUCCEEDED

    def close(self) -> None:
        """Free what ranks have sent."""
        for inbox in self._inboxes.values():
            inbox.close()

    def _load_exception(self, rank: int) -> BaseException | None:
        try:
            error = self._inboxes[rank].load()
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001 its description is used instead
            return None
        # A worker does not send those, and a host that does must not end the caller's process.
        ends = isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit)
        return error if isinstance(error, BaseException) and not ends else None
