"""What is waited for, in words: by each host when a start takes too long, and by the app."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping

from phalanx import _wire as wire
from phalanx._core.ids import AgentId
from phalanx._launcher.agents.agent_handle import AgentHandle
from phalanx._launcher.planning.plan import Plan
from phalanx._worker.leftovers import PRELOADING

_LONG = 2.0
"""Seconds after which a wait is said where there is no terminal with a status line."""
_LOADING = 10.0
"""The same for packages that load, and processes that start, here: most launches do that."""


class LongWaits:
    """Which waits of an app have become long, each once."""

    def __init__(self, *, line: bool, is_local: bool) -> None:
        """Nothing is waited for. `line`: a terminal has a status line instead. `is_local`: no other
        machine takes part.
        """
        self.line = line
        self._usual = ("loading", "starting") if is_local else ("loading",)
        self._what = ""
        self._since = 0.0
        self._told: set[str] = set()

    def is_due(self, text: str, now: float) -> bool:
        """What is waited for now is to be said."""
        what = text.partition(":")[0]
        if what != self._what:
            self._what, self._since = what, now
        limit = _LOADING if what.startswith(self._usual) else _LONG
        known = what.startswith(
            ("running", "waiting for the other hosts")
        )  # who meets them says so
        if known or what in self._told or now - self._since < limit:
            return False
        self._told.add(what)
        return True


def describe_waits(
    plan: Plan,
    agents: Mapping[AgentId, AgentHandle],
    running: Collection[AgentId],
    *,
    has_function: bool,
) -> dict[str, str]:
    """What is waited for, by host, for those whose workers do not run.

    Those that only wait for others are left out, unless nobody else is there.
    """
    found: dict[str, str] = {}
    waiting: dict[str, str] = {}
    for host in plan.hosts:
        member = host.member
        if member.agent in running:
            continue
        agent = agents.get(member.agent)
        tool = None if host.target is None else host.target.tool
        if agent is None:
            found[member.hostname] = f"{tool} is still logging in"
        elif agent.hello is None:
            through = "" if tool is None else f" through {tool}"
            found[member.hostname] = f"no response from its agent{through}"
        elif not agent.ready.done():
            found[member.hostname] = f"still importing {_package(host.prepare, agent)}"
        elif not agent.reached.done() and agent.tried is not None:
            address, port = agent.tried
            found[member.hostname] = f"no answer yet on whether it reaches {address}:{port}"
        elif not has_function:
            waiting[member.hostname] = "the launcher is still loading the function"
        elif not agent.has_begun:
            waiting[member.hostname] = "waiting for the other hosts"
        else:
            found[member.hostname] = "its zygote has not started the workers yet"
    return found or waiting


def _package(prepare: wire.Prepare, agent: AgentHandle) -> str:
    """The package that a zygote is in the middle of; of another host, those it was told to load."""
    if not agent.placed.is_remote and agent.hello is not None:
        path = os.path.join(agent.hello.spool, PRELOADING)
        with contextlib.suppress(OSError), open(path) as file:
            if module := file.read():
                return module
    tops = dict.fromkeys(item.module.partition(".")[0] for item in prepare.preload)
    return ", ".join(list(tops)[:4]) or "Python"
