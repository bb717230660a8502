"""The launch that a replica runs, and those that follow when the scheduler tries it again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from phalanx._registry.recorded_app import RecordedApp
from phalanx._specs import AppState


class ReplicaTries:
    """The launches of one app's only replica, as if they were one."""

    def __init__(
        self,
        app: RecordedApp,
        launch: RecordedApp,
        launches: Callable[[RecordedApp], Sequence[RecordedApp]],
    ) -> None:
        """`launches` gives those that run in an app's replicas now."""
        self._app = app
        self._launch = launch
        self._launches = launches
        self._rounds = self._restarts = 0
        """Of earlier tries."""

    def status(self) -> dict[str, Any]:
        """How it stands: between two tries it has no workers, and its end is that of the app."""
        status = self._launch.status()
        if AppState(status["state"]) is AppState.FAILED:
            app = self._app.state  # before what it runs: one that has ended starts no other
            others = [one for one in self._launches(self._app) if one.id != self._launch.id]
            if others:
                self._rounds += status["round"]
                self._restarts += status["num_restarts"] + 1
                self._launch = others[0]
                return self.status()
            state = app if app.is_final else AppState.PENDING
            status |= {"state": state.value, "workers": [], "hosts": []}
        status["round"] += self._rounds
        status["num_restarts"] += self._restarts
        return status
