"""A verdict on its way from the leader to the others. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx import _wire as wire
from phalanx._core.clock import Interval
from phalanx._core.rounds import Round, runs_of
from phalanx._rendezvous.causes import Failure
from phalanx._rendezvous.protocol import Reason, Verdict
from phalanx._wire import rendezvous_frames

MOST_TOLD = 64
"""Of so many failures beside the cause the other hosts are told: each may be a long text."""


def frames_of(verdict: Verdict) -> list[wire.Frame]:
    """A verdict, to be told to the other hosts."""
    told = [("cause", f) for f in (verdict.cause,) if f is not None]
    told += [("other", f) for f in verdict.others[:MOST_TOLD]]
    told += [("restart cause", f) for f in verdict.restart_causes]
    frames: list[wire.Frame] = [
        rendezvous_frames.FailureTold(
            agent=f.agent,
            hostname=f.hostname,
            outcome=f.outcome,
            consequence=f.consequence,
            kind=kind,
        )
        for kind, f in told
    ]
    over = rendezvous_frames.AppEnded(
        reason=verdict.reason.value,
        missing=verdict.missing,
        note=verdict.note,
        hosts=verdict.hosts or runs_of(verdict.members),
    )
    return [*frames, over]


def verdict_of(
    over: rendezvous_frames.AppEnded,
    blamed: Sequence[rendezvous_frames.FailureTold],
    round_: Round | None,
) -> Verdict:
    """The verdict that another host has told; `round_` is the last one, as it is known here."""

    def failures(kind: str) -> tuple[Failure, ...]:
        return tuple(
            Failure(
                b.agent,
                b.hostname,
                b.outcome,
                Interval(b.outcome.clock, b.outcome.clock),
                consequence=b.consequence,
            )
            for b in blamed
            if b.kind == kind
        )

    return Verdict(
        reason=Reason(over.reason),
        cause=next(iter(failures("cause")), None),
        others=failures("other"),
        missing=over.missing,
        members=() if round_ is None else round_.members,
        hosts=over.hosts,
        restart_causes=failures("restart cause"),
        note=over.note,
    )
