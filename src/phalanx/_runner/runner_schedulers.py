"""The schedulers of a runner: created when they are first asked for, and which options apply.

It knows neither apps nor components.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from phalanx._logs import logger
from phalanx._runner import config
from phalanx._runner.config import Config, ConfigValue, option_problems
from phalanx._schedulers.factories import (
    Factory,
    adapted,
    create_scheduler,
    default_scheduler,
    get_scheduler_factories,
    unknown_scheduler,
)
from phalanx._schedulers.options import Option, make, options
from phalanx._schedulers.scheduler import Scheduler
from phalanx._schedulers.scheduler_calls import asking
from phalanx.errors import ConfigError, PhalanxError, SchedulerError


class RunnerSchedulers:
    """One scheduler by name and session, with the options that the configuration gives it."""

    def __init__(
        self,
        factories: Mapping[str, Factory] | None,
        params: Mapping[str, object],
        load_config: Callable[[], Config],
        adapt: Callable[[Any], Scheduler[Any, Any]] = adapted,
    ) -> None:
        """`factories` are by default all available ones; `load_config` is called when needed;
        `adapt` makes a scheduler of what one of `factories` gives.
        """
        self._factories = factories
        self._params = dict(params)
        self._load_config = load_config
        self._adapt = adapt
        self._created: dict[tuple[str, str], Scheduler[Any, Any]] = {}

    @property
    def default(self) -> str:
        """The one that is used when none is named."""
        section = self._load_config().section("command", "run", {"scheduler": None})
        configured = section.get("scheduler")
        return default_scheduler() if configured is None else str(configured.value)

    def names(self) -> list[str]:
        """All of them, the default one first."""
        return [*(get_scheduler_factories() if self._factories is None else self._factories)]

    def get(self, name: str, session: str) -> Scheduler[Any, Any]:
        """The scheduler. Raises `UnknownScheduler` and `SchedulerError`."""
        key = name, session
        if key not in self._created:
            self._created[key] = self._create(name, session)
        return self._created[key]

    def close(self) -> None:
        """Let go of their connections."""
        while self._created:
            (name, _), scheduler = self._created.popitem()
            try:
                with asking(name):
                    scheduler.close()
            except SchedulerError as error:
                logger.warning("phalanx: %s", error)

    def effective_options(
        self, name: str, known: Sequence[Option], given: Mapping[str, Any]
    ) -> dict[str, ConfigValue]:
        """Every option with its value, and where that came from; `given` wins."""
        found = {o.name: ConfigValue(o.default, config.DEFAULT) for o in known if not o.required}
        found |= self._load_config().section("scheduler", name, {o.name: None for o in known})
        cli = {key.replace("-", "_"): value for key, value in given.items()}
        return found | {key: ConfigValue(value, config.COMMAND_LINE) for key, value in cli.items()}

    def make_options(
        self, name: str, scheduler: Scheduler[Any, Any], given: Mapping[str, Any]
    ) -> Any:
        """What the scheduler is told. Raises `ConfigError`."""
        known = options(scheduler.options)
        effective = self.effective_options(name, known, given)
        for problem in option_problems(name, known, effective):
            raise ConfigError(problem)
        chosen = {k: v.value for k, v in effective.items() if v.origin != config.DEFAULT}
        return make(name, scheduler.options, chosen)

    def find_foreign(self, name: str, session: str, given: Mapping[str, Any]) -> dict[str, str]:
        """For options that this scheduler does not have: another that has it."""
        names = {o.name for o in options(self.get(name, session).options)}
        rest = [key for key in given if key.replace("-", "_") not in names]
        found: dict[str, str] = {}
        for other in self.names() if rest else ():
            try:
                known = {o.name for o in options(self.get(other, session).options)}
            except PhalanxError:
                continue  # it is not the one that is asked for
            found |= {k: other for k in rest if k not in found and k.replace("-", "_") in known}
        return found

    def _create(self, name: str, session: str) -> Scheduler[Any, Any]:
        if self._factories is None:
            return create_scheduler(name, session, **self._params)
        if name not in self._factories:
            raise unknown_scheduler(name, self._factories)
        with asking(name):
            return self._adapt(self._factories[name](session, **self._params))
