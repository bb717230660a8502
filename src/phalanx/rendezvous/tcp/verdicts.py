"""A verdict on its way from the host that decides to the others. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx import wire
from phalanx.clock import Interval
from phalanx.rendezvous.causes import Failure
from phalanx.rendezvous.protocol import Reason, Verdict
from phalanx.wire import peers


def frames_of(verdict: Verdict) -> list[wire.Frame]:
    """A verdict, to be told to another host."""
    told = [("cause", f) for f in (verdict.cause,) if f is not None]
    told += [("other", f) for f in verdict.others]
    told += [("attempt", f) for f in verdict.attempts]
    frames: list[wire.Frame] = [
        peers.Blame(
            agent=f.agent,
            hostname=f.hostname,
            outcome=f.outcome,
            consequence=f.consequence,
            role=role,
        )
        for role, f in told
    ]
    over = peers.Over(
        reason=verdict.reason.value,
        missing=verdict.missing,
        note=verdict.note,
        members=verdict.members,
    )
    return [*frames, over]


def verdict_of(over: peers.Over, blamed: Sequence[peers.Blame]) -> Verdict:
    """The verdict that another host has told."""

    def failures(role: str) -> tuple[Failure, ...]:
        return tuple(
            Failure(
                *(b.agent, b.hostname, b.outcome, Interval(b.outcome.clock, b.outcome.clock)),
                consequence=b.consequence,
            )
            for b in blamed
            if b.role == role
        )

    return Verdict(
        reason=Reason(over.reason),
        cause=next(iter(failures("cause")), None),
        others=failures("other"),
        missing=over.missing,
        members=over.members,
        attempts=failures("attempt"),
        note=over.note,
    )
