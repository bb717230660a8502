"""What was decided, by this host or by another, carried out on this one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from phalanx._core.rounds import Endpoint, Round
from phalanx._rendezvous.protocol import (
    BeginRoundAction,
    CoordinatorAction,
    FinishAction,
    HaltRoundAction,
    Verdict,
)
from phalanx._rendezvous.tcp.host import TcpHost
from phalanx._rendezvous.tcp.state import TcpState


class LocalActions:
    """Passes on to this host's agent what concerns it."""

    def __init__(
        self,
        host: TcpHost,
        state: TcpState,
        act: Callable[[CoordinatorAction], None],
        share_port: Callable[[Endpoint | None], None],
    ) -> None:
        """`act` has it done; `share_port` is told the store that is behind the shared port."""
        self._host = host
        self._state = state
        self._act = act
        self._share_port = share_port

    def carry_out(self, action: CoordinatorAction) -> None:
        """Do it, if it concerns this host."""
        match action:
            case BeginRoundAction(round_):
                self._begin(round_)
            case HaltRoundAction():
                if self._state.is_member and self._state.stop() is not None:
                    self._act(action)
            case FinishAction(verdict):
                self.finish(verdict)
            case _:
                self._act(action)

    def _begin(self, round_: Round) -> None:
        is_member = self._state.begin(round_)
        if self._host.shares_port:
            self._share_port(round_.store if self._state.leader is not None else None)
            if round_.torch:
                round_ = replace(round_, store=self._host.endpoint, bound=round_.store.port)
        if is_member:
            self._act(BeginRoundAction(round_))

    def halt(self, grace: float) -> None:
        """Have the workers here stopped."""
        if (number := self._state.stop()) is not None:
            self._act(HaltRoundAction(number, grace))

    def finish(self, verdict: Verdict) -> None:
        """The app has ended."""
        if self._state.finish():
            self._act(FinishAction(verdict))
