"""The hosts of an app: expected, present or gone; and whether they are enough. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from phalanx._core.ids import AgentId
from phalanx._core.rounds import Endpoint, Member
from phalanx._rendezvous.membership import Host, choose, may_decide
from phalanx._rendezvous.protocol import CoordinatorSettings, JoinedEvent


class Roster:
    """Who could be in a round."""

    def __init__(self, settings: CoordinatorSettings) -> None:
        """Nobody has come yet."""
        self._settings = settings
        self.hosts = {host.agent: host for host in settings.hosts}
        self.joined: dict[AgentId, Endpoint] = {}
        self.torch: dict[AgentId, bool | None] = {}
        self.gone: dict[AgentId, bool] = {}
        """Those that are not there any more, or never came; whether that is certain."""
        self.left: set[AgentId] = set()
        """Those that will not come back by themselves."""
        self.leaving: set[AgentId] = set()
        """Those whose hosts will be taken away."""
        self.excluded: set[AgentId] = set()
        """Those that are not wanted back; another may come in their place."""

    def join(self, event: JoinedEvent) -> bool:
        """One has come; False if nobody knows what it is, or wants it."""
        agent = event.agent
        if event.host is not None:
            self.hosts[agent] = event.host
        if agent not in self.hosts or agent in self.excluded:
            return False
        self.joined[agent] = event.endpoint
        self.torch[agent] = event.torch
        self.gone.pop(agent, None)
        self.leaving.discard(agent)
        self.left.discard(agent)
        return True

    def wants_store(self, agents: Iterable[AgentId]) -> bool | None:
        """Whether one of them wants a store; None where nobody knows."""
        known = [wants for agent in agents if (wants := self.torch.get(agent)) is not None]
        return any(known) if known else None

    def expect(self, members: Iterable[Member]) -> None:
        """Know of those that were in a round."""
        for member in members:
            host = Host(member.agent, member.hostname, member.workers, role=member.role)
            self.hosts.setdefault(member.agent, host)

    def move(self, agent: AgentId, endpoint: Endpoint) -> None:
        """The next store of one that is there can be at this endpoint."""
        if agent in self.joined:
            self.joined[agent] = endpoint

    def preempt(self, agent: AgentId) -> None:
        """One's host will be taken away."""
        self.leaving.add(agent)

    def lose(self, agent: AgentId, *, certain: bool, left: bool = False) -> None:
        """One has gone; `left`: it will not come back by itself."""
        self.joined.pop(agent, None)
        self.gone[agent] = certain
        if left:
            self.left.add(agent)

    def exclude(self, agent: AgentId) -> None:
        """One is done without for good."""
        self.lose(agent, certain=self.gone.get(agent, True))
        self.excluded.add(agent)

    @property
    def can_spare_leavers(self) -> bool:
        """Those that stay are enough."""
        return len(self.joined.keys() - self.leaving) >= self._settings.least

    def let_go(self) -> None:
        """Do without those that leave, if the others are enough."""
        if self.can_spare_leavers:
            for agent in self.leaving & self.joined.keys():
                self.lose(agent, certain=True)

    @property
    def is_enough(self) -> bool:
        """Those that are there can form a round."""
        return len(self.joined) >= self._settings.least

    @property
    def is_complete(self) -> bool:
        """All that could be wanted for a first round are there, or will not come."""
        if self._settings.open:
            return len(self.joined) >= self._settings.most
        if self.all_heard_of:
            return True
        if len(self.joined) < self._settings.most:
            return False  # known at once, as one after the other comes
        return all(
            host.agent in self.joined for host in self._settings.hosts[: self._settings.most]
        )

    @property
    def all_heard_of(self) -> bool:
        """Everybody who is expected has come, or will not."""
        expected = self._settings.hosts
        if self._settings.open or len(self.joined) + len(self.gone) < len(expected):
            return False  # nobody is both here and gone
        return all(h.agent in self.joined or h.agent in self.gone for h in expected)

    @property
    def may_suffice(self) -> bool:
        """There can still be enough."""
        expected = self._settings.hosts
        if self._settings.open or len(expected) - len(self.gone) >= self._settings.least:
            return True
        coming = {host.agent for host in expected if host.agent not in self.gone}
        return len(self.joined.keys() | coming) >= self._settings.least

    @property
    def may_recover(self) -> bool:
        """Enough are there, or may come back."""
        back = self.hosts.keys() - self.left
        return self._settings.open or len(self.joined.keys() | back) >= self._settings.least

    def choose(self, stay: Collection[AgentId]) -> list[Host]:
        """Those for the next round, in rank order."""
        return choose((self.hosts[a] for a in self.joined), self._settings.most, stay)

    def spare(self, members: Collection[AgentId], workers: int) -> Host | None:
        """One that waits, and has so many workers."""
        waiting = [self.hosts[a] for a in self.joined if a not in members]
        fitting = [host for host in waiting if host.workers == workers]
        return min(fitting, key=lambda host: (host.order, host.agent), default=None)

    def may_decide(self, last: Collection[AgentId], alive: Collection[AgentId]) -> bool:
        """Nobody else can form a round for the app meanwhile."""
        closed = {agent for agent, certain in self.gone.items() if certain}
        elected = self._settings.elected
        return not self._settings.quorum or may_decide(last, alive, closed, elected=elected)

    def describe(self, since: str = "") -> str:
        """Who has come, of how many; `since` says within which time, for an error."""
        came = ", ".join(self.names(self.joined)) or "none"
        return f"{len(self.joined)} of at least {self._settings.least} hosts joined{since}: {came}"

    def names(self, agents: Iterable[AgentId]) -> tuple[str, ...]:
        """The hosts' names."""
        return tuple(self.hosts[agent].hostname for agent in agents if agent in self.hosts)
