"""The one way to start an app, for everybody inside who launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from phalanx._launcher.planning.listed_hosts import HostFacts, ListedHost, unknown_hosts
from phalanx._launcher.planning.plan import Draft, HostPart, Plan, draft_plan
from phalanx._launcher.session.app_run import AppRun, ReplaceHost
from phalanx._launcher.session.decider import MakeDecider, decide_locally

if TYPE_CHECKING:
    from phalanx._launcher.launch_options import LaunchOptions
    from phalanx._launcher.payload import Function
    from phalanx._launcher.planning.imports import Needs
    from phalanx._launcher.transport.dial import Dials
    from phalanx._launcher.warm.pool import AgentPool
    from phalanx._registry.app_record import AppRecord


@dataclass(frozen=True)
class Work:
    """What the workers do."""

    function: Future[Function]
    """The pickled function, with its arguments; it may follow once agents are on their way."""
    needs: Needs
    title: str

    @classmethod
    def of(cls, function: Function, needs: Needs, title: str) -> Work:
        """A function that is there already."""
        future: Future[Function] = Future()
        future.set_result(function)
        return cls(future, needs, title)


@dataclass(frozen=True)
class PreparedApp:
    """An app of which everything was checked; hosts may have been dialled, nothing else started."""

    plan: Plan
    work: Work
    pools: Sequence[AgentPool] = ()
    dials: Dials | None = None

    def start(
        self,
        *,
        decide: MakeDecider = decide_locally,
        is_recorded: bool = True,
        replace_host: ReplaceHost | None = None,
        record: AppRecord | None = None,
    ) -> AppRun[Any]:
        """Start its agents; does not wait. To be called once.

        `decide` makes the one that decides. `is_recorded`: other processes can find it; one that is
        part of another app need not be; `record` is the one that it has already. `replace_host`
        gives another host for one that is lost.
        """
        return AppRun(
            self.plan,
            self.work.function,
            pools=self.pools,
            dials=self.dials,
            decide=decide,
            is_recorded=is_recorded,
            replace_host=replace_host,
            record=record,
        )


def prepare_app(
    options: LaunchOptions,
    work: Work,
    *,
    directory: str | None = None,
    pools: Sequence[AgentPool] = (),
    known: Mapping[str, HostFacts] = MappingProxyType({}),
    part: HostPart | None = None,
    hosts: Sequence[ListedHost] | None = None,
) -> PreparedApp:
    """Check what was asked for, and make the plan.

    `directory`: the one that workers run in, by default the current one. `pools`: where agents may
    wait already; `known`: the facts of hosts with such agents. `part`: this is one host of several
    that meet by themselves. `hosts`: those to run on, such as lent ones, instead of the options'.
    Hosts that have to be asked how many workers they take are dialled for that. Raises
    `ConfigError`, and `StartFailed` for hosts that could not be asked.
    """
    draft = draft_plan(options, work.needs, work.title, directory, hosts)
    return prepare_draft(draft, work, pools=pools, known=known, part=part)


def prepare_draft(
    draft: Draft,
    work: Work,
    *,
    pools: Sequence[AgentPool] = (),
    known: Mapping[str, HostFacts] = MappingProxyType({}),
    part: HostPart | None = None,
    on_dial: Callable[[Dials], None] = lambda _: None,
) -> PreparedApp:
    """Make the plan of what was checked already; otherwise as `prepare_app`.

    `on_dial` is given the dials to hosts that are asked, so that another thread can give them up.
    """
    asked = unknown_hosts(draft.options, draft.hosts, known)
    if not asked or draft.remote_setup is None:
        return PreparedApp(draft.finish(known, part), work, pools)
    from phalanx._launcher.transport.dial import Dials

    dials = Dials()
    targets = {i: target for i in asked if (target := draft.hosts[i].target) is not None}
    dials.start(targets, draft.remote_setup, draft.options.parallel_logins)
    on_dial(dials)
    try:
        found = {n: HostFacts(info.processors, info.gpus) for n, info in dials.wait().items()}
        return PreparedApp(draft.finish({**known, **found}, part), work, pools, dials)
    except BaseException:
        dials.give_up()
        raise
