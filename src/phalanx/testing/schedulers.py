"""What every scheduler must pass: a suite that runs against the real thing.

    from phalanx.testing import SchedulerSuite

    class TestMine(SchedulerSuite):
        def create_scheduler(self, session_name):
            return MyScheduler(session_name)

pytest finds the tests; it is not imported here. What a scheduler says it cannot do is not asked of
it: see `Capabilities`.
"""

from __future__ import annotations

import copy
import dataclasses
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any, Self

from phalanx.errors import ConfigError
from phalanx.schedulers import Capabilities, Scheduler, Stream
from phalanx.schedulers.options import make, options
from phalanx.specs import AppDef, AppState, AppStatus, RetryPolicy, Role


class SchedulerSuite:
    """Subclass it; `create_scheduler` is all that must be written."""

    timeout: float = 60.0
    """Seconds that anything may take."""

    image: str = ""
    """The image that apps run in; it has `sh`."""

    def create_scheduler(self, session_name: str) -> Scheduler[Any, Any]:
        """A new one, which knows the apps of earlier ones of the same session."""
        raise NotImplementedError("say how your scheduler is made: create_scheduler")

    def scheduler_options(self) -> Mapping[str, Any]:
        """The options that apps are submitted with."""
        return {}

    # ── what there must be ────────────────────────────────────────────────────

    def test_its_options_are_a_dataclass(self) -> None:
        """Flags, config keys and help come from it."""
        kind = self.create_scheduler("suite").options
        assert dataclasses.is_dataclass(kind)
        assert all(option.help for option in options(kind)), "each option says what it is for"
        assert isinstance(self.create_scheduler("suite").capabilities, Capabilities)

    def test_a_dry_run_creates_and_changes_nothing(self) -> None:
        """Neither an app nor the definition it is given."""
        run = _Session(self)
        app = run.app("echo hi", env={"A": "$${A}"}, metadata={"b": ["${app_id}"]})
        before, known = copy.deepcopy(app), len(run.scheduler.list())
        run.scheduler.dryrun(app, run.options)
        assert app == before
        assert len(run.scheduler.list()) == known

    def test_an_app_runs_to_its_end(self) -> None:
        """And another scheduler object, as in another process, knows it."""
        with _Session(self) as run:
            app_id = run.submit(run.app("echo hi"))
            status = run.wait(app_id)
            assert status.state is AppState.SUCCEEDED, status
            again = self.create_scheduler(run.session).describe(app_id)
            assert again is not None
            assert again.state is AppState.SUCCEEDED

    def test_a_failed_replica_fails_the_app(self) -> None:
        """Though the others would go on."""
        with _Session(self) as run:
            command = "if [ ${replica_id} = 1 ]; then exit 3; fi; sleep 600"
            app_id = run.submit(run.app(command, num_replicas=2))
            status = run.wait(app_id)
            assert status.state is AppState.FAILED, status
            codes = [r.exit_code for role in status.roles for r in role.replicas]
            assert 3 in codes or status.exit_code == 3, "the exit code is told"

    def test_replicas_know_who_they_are(self) -> None:
        """Macros in arguments and environment, `$$`, and the variable that rank0_env names."""
        with _Session(self) as run:
            command = (
                "echo id=${replica_id} app=${app_id} env=$$A cost=$$$$5 unknown=$${nothing} "
                'first="$${${rank0_env}:+set}"'
            )
            app_id = run.submit(run.app(command, num_replicas=2, env={"A": "<${replica_id}>"}))
            run.wait(app_id)
            for replica in range(2):
                (line,) = run.lines(app_id, replica)
                assert f"id={replica} app={app_id} env=<{replica}>" in line, line
                assert line.endswith("first=set"), line

    # ── what it prints ────────────────────────────────────────────────────────

    def test_no_line_is_lost(self) -> None:
        """Nor out of order, nor broken; the last one without its end included."""
        with _Session(self) as run:
            command = "i=0; while [ $$i -lt 500 ]; do echo line $$i; i=$$((i+1)); done; printf end"
            app_id = run.submit(run.app(command))
            run.wait(app_id)
            assert run.lines(app_id) == [*(f"line {i}" for i in range(500)), "end"]

    def test_following_goes_on_until_the_end(self) -> None:
        """And gives everything, however early it begins."""
        with _Session(self) as run:
            app_id = run.submit(run.app("echo one; sleep 1; echo two"))
            assert run.lines(app_id, follow=True) == ["one", "two"]

    def test_without_follow_it_returns_at_once(self) -> None:
        """Though the app goes on."""
        with _Session(self) as run:
            app_id = run.submit(run.app("echo one; sleep 600"))
            self._until(lambda: run.lines(app_id) == ["one"], "the first line")
            assert run.describe(app_id).state is AppState.RUNNING

    def test_streams_are_told_apart(self) -> None:
        """If it says that they are."""
        with _Session(self) as run:
            if not run.scheduler.capabilities.streams:
                return
            app_id = run.submit(run.app("echo out; echo err >&2"))
            run.wait(app_id)
            assert run.lines(app_id, stream=Stream.STDOUT) == ["out"]
            assert run.lines(app_id, stream=Stream.STDERR) == ["err"]
            assert sorted(run.lines(app_id)) == ["err", "out"]

    def test_lines_have_times(self) -> None:
        """If it says that they do."""
        with _Session(self) as run:
            if not run.scheduler.capabilities.times:
                return
            app_id = run.submit(run.app("echo early; sleep 3; echo late"))
            run.wait(app_id)
            lines = list(run.scheduler.logs(app_id, "role", 0))
            assert all(line.time is not None for line in lines)
            middle = sum(line.time or 0.0 for line in lines) / 2
            assert run.lines(app_id, since=middle) == ["late"]
            assert run.lines(app_id, until=middle) == ["early"]

    # ── ends ──────────────────────────────────────────────────────────────────

    def test_cancelling_ends_an_app(self) -> None:
        """Twice is once; so is once more when it has ended."""
        with _Session(self) as run:
            app_id = run.submit(run.app("echo up; sleep 600"))
            self._until(lambda: run.lines(app_id) == ["up"], "the app's first line")
            run.scheduler.cancel(app_id)
            run.scheduler.cancel(app_id)
            assert run.wait(app_id).state is AppState.CANCELLED
            run.scheduler.cancel(app_id)
            assert run.describe(app_id).state is AppState.CANCELLED

    def test_what_has_ended_is_not_cancelled(self) -> None:
        """It stays what it was."""
        with _Session(self) as run:
            app_id = run.submit(run.app("true"))
            run.wait(app_id)
            run.scheduler.cancel(app_id)
            assert run.describe(app_id).state is AppState.SUCCEEDED

    def test_apps_are_listed_until_they_are_deleted(self) -> None:
        """Deleting twice does no harm."""
        with _Session(self) as run:
            app_id = run.submit(run.app("true"))
            run.wait(app_id)
            assert app_id in [app.app_id for app in run.scheduler.list()]
            run.scheduler.delete(app_id)
            run.scheduler.delete(app_id)
            assert run.scheduler.describe(app_id) is None
            assert app_id not in [app.app_id for app in run.scheduler.list()]

    def test_an_unknown_app_is_no_disaster(self) -> None:
        """It is not there; that is all."""
        run = _Session(self)
        assert run.scheduler.describe("nothing-00000000") is None
        run.scheduler.cancel("nothing-00000000")
        run.scheduler.delete("nothing-00000000")
        try:
            list(run.scheduler.logs("nothing-00000000", "role", 0))
        except LookupError:
            return
        raise AssertionError("the logs of an app that is not there were given")

    def test_a_role_or_replica_that_is_not_there_is_refused(self) -> None:
        """By name."""
        with _Session(self) as run:
            app_id = run.submit(run.app("true"))
            run.wait(app_id)
            for role, replica in (("other", 0), ("role", 7)):
                try:
                    list(run.scheduler.logs(app_id, role, replica))
                except LookupError:
                    continue
                raise AssertionError(f"{role}/{replica} is not there")

    def test_retries_start_again(self) -> None:
        """By the policies that it names."""
        with _Session(self) as run:
            for policy in sorted(run.scheduler.capabilities.retry_policies, key=lambda p: p.value):
                app_id = run.submit(self._fails_at_first(run, policy))
                status = run.wait(app_id)
                assert status.state is AppState.FAILED, (policy, status)
                assert run.lines(app_id).count("try") == 3, f"{policy}: once, and two retries"

    def _fails_at_first(self, run: _Session, policy: RetryPolicy) -> AppDef:
        return run.app("echo try; exit 1", max_retries=2, retry_policy=policy)

    def test_what_cannot_run_is_refused_before_it_is_submitted(self) -> None:
        """An app of nothing."""
        run = _Session(self)
        for app in (AppDef("nothing"), AppDef("nothing", [Role("role")])):
            try:
                run.scheduler.dryrun(app, run.options)
            except ConfigError:
                continue
            raise AssertionError(f"{app} was taken")

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        limit = time.monotonic() + self.timeout
        while not holds():
            assert time.monotonic() < limit, f"{what} never came"
            time.sleep(0.05)


class _Session:
    """A scheduler of its own for one test; what it has submitted is gone afterwards."""

    def __init__(self, suite: SchedulerSuite) -> None:
        self._suite = suite
        self.session = f"suite-{secrets.token_hex(3)}"
        self.scheduler = suite.create_scheduler(self.session)
        given = suite.scheduler_options()
        self.options = make(self.session, self.scheduler.options, given)
        self._submitted: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for app_id in self._submitted:
            self.scheduler.delete(app_id)
        self.scheduler.close()

    def app(self, command: str, **fields: Any) -> AppDef:
        """An app whose one role runs a line of shell."""
        image = self._suite.image
        role = Role(name="role", image=image, entrypoint="sh", args=["-c", command], **fields)
        return AppDef("suite", [role])

    def submit(self, app: AppDef) -> str:
        app_id = self.scheduler.submit(self.scheduler.dryrun(app, self.options))
        self._submitted.append(app_id)
        return app_id

    def describe(self, app_id: str) -> AppStatus:
        status = self.scheduler.describe(app_id)
        assert status is not None, f"{app_id} is not there"
        return status

    def wait(self, app_id: str) -> AppStatus:
        limit = time.monotonic() + self._suite.timeout
        while not (status := self.describe(app_id)).state.is_final:
            assert time.monotonic() < limit, f"{app_id} has not ended: {status}"
            time.sleep(0.05)
        return status

    def lines(self, app_id: str, replica: int = 0, **options: Any) -> list[str]:
        return [line.text for line in self.scheduler.logs(app_id, "role", replica, **options)]
