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
import os
import re
import tempfile
import threading
import time
import unittest
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from phalanx._schedulers.options import options
from phalanx._schedulers.scheduler import Capabilities, Scheduler, Stream
from phalanx._specs import AppDef, AppState, RetryPolicy, Role
from phalanx.errors import ConfigError
from phalanx.testing._lending_suite import LendingSuite
from phalanx.testing._suite_session import SuiteSession


class SchedulerSuite(LendingSuite):
    """Subclass it; `create_scheduler` is all that must be written."""

    timeout: float = 60.0
    """Seconds that anything may take."""

    start_skew: float = 0.5
    """Seconds by which replicas of one app may start one after the other."""

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
        run = SuiteSession(self)
        app = run.app("echo hi", env={"A": "$${A}"}, metadata={"b": ["${app_id}"]})
        before, known = copy.deepcopy(app), len(run.scheduler.list())
        run.scheduler.dryrun(app, run.options)
        assert app == before
        assert len(run.scheduler.list()) == known

    def test_submitting_does_not_wait_for_the_end(self) -> None:
        """The id is there while the app runs; and it fits into a handle."""
        with SuiteSession(self) as run:
            app_id = run.submit(run.app("sleep 600"))
            assert not run.describe(app_id).state.is_final
            assert app_id
            assert not {"/", " ", "\n"} & {*app_id}

    def test_submitting_takes_none_of_our_streams_along(self) -> None:
        """`h=$(phalanx run …)` would wait for the app's end."""
        with SuiteSession(self) as run:
            reading, writing = os.pipe()
            kept = os.dup(1)
            os.dup2(writing, 1)
            try:
                run.submit(run.app("sleep 600"))
            finally:
                os.dup2(kept, 1)
                os.close(kept)
                os.close(writing)
            with open(reading, "rb", buffering=0) as pipe:
                os.set_blocking(reading, False)
                self._until(lambda: pipe.read(1 << 16) == b"", "the end of stdout")

    def test_an_app_runs_to_its_end(self) -> None:
        """Another scheduler object, as in another process, knows it; and it stays what it was."""
        with SuiteSession(self) as run:
            app_id = run.submit(run.app("echo hi"))
            status = run.wait(app_id)
            assert status.state is AppState.SUCCEEDED, status
            again = self.create_scheduler(run.session).describe(app_id)
            assert again is not None, "another object does not know it"
            assert again.state is AppState.SUCCEEDED
            for role, replica in (("other", 0), ("role", 7)):
                self._expect_no_such_replica(run, app_id, role, replica)
            run.scheduler.cancel(app_id)
            assert run.describe(app_id).state is AppState.SUCCEEDED, "it was cancelled afterwards"

    def _expect_no_such_replica(
        self, run: SuiteSession, app_id: str, role: str, replica: int
    ) -> None:
        try:
            list(run.scheduler.logs(app_id, role, replica))
        except LookupError:
            return
        raise AssertionError(f"the logs of {role}/{replica}, which is not there, were given")

    def test_a_failed_replica_fails_the_app(self) -> None:
        """Though the others would go on."""
        with SuiteSession(self) as run:
            command = "if [ ${replica_id} = 1 ]; then exit 3; fi; sleep 600"
            app_id = run.submit(run.app(command, num_replicas=2))
            status = run.wait(app_id)
            assert status.state is AppState.FAILED, status
            codes = [r.exit_code for role in status.roles for r in role.replicas]
            assert 3 in codes or status.exit_code == 3, "the exit code is told"

    def test_a_failed_app_has_ended(self) -> None:
        """What else it was doing is not done any more."""
        command = (
            f"if [ ${{replica_id}} = 1 ]; then sleep {self.start_skew}; exit 3; fi; "
            "i=0; while :; do echo $$i; i=$$((i+1)); sleep 0.05; done"
        )
        with SuiteSession(self) as run:
            app_id = run.submit(run.app(command, num_replicas=2))
            assert run.wait(app_id).state is AppState.FAILED
            run.expect_no_more_lines(app_id, "the other replica goes on")

    def test_what_cannot_be_started_fails_the_app_at_once(self) -> None:
        """Whatever else of it could be."""
        with SuiteSession(self) as run:
            missing = Role("missing", image=self.image, entrypoint="no-such-program-anywhere")
            (other,) = run.app("sleep 600").roles
            roles = [missing, other] if run.can.several_roles else [missing]
            status = run.wait(run.submit(AppDef("suite", roles)))
            assert status.state is AppState.FAILED, status

    def test_all_roles_run(self) -> None:
        """If it says that it takes several."""
        with SuiteSession(self) as run:
            self._need(run.can.several_roles, "it runs apps of one role")
            (one,) = run.app("echo one").roles
            (two,) = run.app("echo two").roles
            app = AppDef("suite", [one, dataclasses.replace(two, name="other")])
            app_id = run.submit(app)
            assert run.wait(app_id).state is AppState.SUCCEEDED
            (line,) = run.scheduler.logs(app_id, "other", 0)
            assert (line.role, line.replica, line.text) == ("other", 0, "two")

    def test_words_arrive_as_they_were_given(self) -> None:
        """With blanks, quotes, newlines and letters of all kinds, in arguments and environment."""
        words = ["a  b", "'\"\\", "ü—字", "", "*", "x\ny"]
        with SuiteSession(self) as run:
            role = Role(
                name="role",
                image=self.image,
                entrypoint="sh",
                args=["-c", 'printf "<%s>" "$$@" "$$ODD"; echo', "sh", *words],
                env={"ODD": words[1]},
            )
            app_id = run.submit(AppDef("suite", [role]))
            run.wait(app_id)
            text = "".join(f"<{word}>" for word in [*words, words[1]])
            assert "\n".join(run.lines(app_id)) == text, "words were changed on the way"

    def test_replicas_run_with_the_workspace(self) -> None:
        """In the directory that the role names, if it has workspaces."""
        with SuiteSession(self) as run, tempfile.TemporaryDirectory() as directory:
            self._need(run.can.workspace, "it has no workspaces")
            Path(directory, "file-of-the-workspace").write_text("found\n")
            app_id = run.submit(run.app("cat file-of-the-workspace", workspace=directory))
            run.wait(app_id)
            assert run.lines(app_id) == ["found"], "it did not run in the workspace"

    def test_replicas_know_who_they_are(self) -> None:
        """Macros in arguments and environment, `$$`, and the variable that rank0_env names."""
        with SuiteSession(self) as run:
            command = (
                "echo id=${replica_id} app=${app_id} env=$$A cost=$$$$5 unknown=$${nothing} "
                'first="$${${rank0_env}:+set}"'
            )
            app_id = run.submit(run.app(command, num_replicas=2, env={"A": "<${replica_id}>"}))
            run.wait(app_id)
            for replica in range(2):
                (line,) = run.scheduler.logs(app_id, "role", replica)
                assert (line.role, line.replica) == ("role", replica), "lines say whose they are"
                said = re.match(rf"id={replica} app=(\S+) env=<{replica}> cost=", line.text)
                assert said, line
                assert said[1] in app_id.split(":"), f"{said[1]} is no part of {app_id}"
                assert line.text.endswith("5 unknown= first=set"), line

    # ── what it prints ────────────────────────────────────────────────────────

    def test_no_line_is_lost(self) -> None:
        """Nor out of order, nor broken; the last one without its end included.

        Streams are told apart, if it says that they are.
        """
        with SuiteSession(self) as run:
            command = "i=0; while [ $$i -lt 500 ]; do echo '  line' $$i; i=$$((i+1)); done; "
            app_id = run.submit(run.app(command + "echo; echo err >&2; printf 'Ende ü'"))
            run.wait(app_id)
            printed = [*(f"  line {i}" for i in range(500)), "", "Ende ü"]
            found = run.lines(app_id)
            assert found.count("err") == 1, "stderr is there as well"
            found.remove("err")
            assert found == printed
            if run.can.streams:
                assert run.lines(app_id, stream=Stream.STDOUT) == printed
                assert run.lines(app_id, stream=Stream.STDERR) == ["err"]

    def test_following_goes_on_until_the_end(self) -> None:
        """And gives everything, however early it begins."""
        with SuiteSession(self) as run:
            app_id = run.submit(run.app("echo one; sleep 1; echo two"))
            assert run.lines(app_id, follow=True) == ["one", "two"], "following ended too early"

    def test_without_follow_it_returns_at_once(self) -> None:
        """Though the app goes on."""
        with SuiteSession(self) as run:
            app_id = run.submit(run.app("echo one; sleep 600"))
            self._until(lambda: run.lines(app_id) == ["one"], "the first line")
            assert run.describe(app_id).state is AppState.RUNNING

    def test_lines_have_times(self) -> None:
        """If it says that they do."""
        with SuiteSession(self) as run:
            self._need(run.can.times, "it keeps no times")
            app_id = run.submit(run.app("echo early; sleep 3; echo late"))
            run.wait(app_id)
            lines = list(run.scheduler.logs(app_id, "role", 0))
            assert all(line.time is not None for line in lines)
            middle = sum(line.time or 0.0 for line in lines) / 2
            assert run.lines(app_id, since=middle) == ["late"]
            assert run.lines(app_id, until=middle) == ["early"]

    def test_following_ends_with_a_cancelled_app(self) -> None:
        """And has what was printed before."""
        with SuiteSession(self) as run:
            app_id = run.submit(run.app("echo one; exec sleep 600"))
            self._until(lambda: run.lines(app_id) == ["one"], "the first line")
            ender = threading.Timer(0.5, self.create_scheduler(run.session).cancel, [app_id])
            ender.start()
            seen = run.lines(app_id, follow=True)
            assert seen == ["one"], seen
            ender.join()

    # ── ends ──────────────────────────────────────────────────────────────────

    def test_cancelling_ends_an_app(self) -> None:
        """Twice is once; so is once more when it has ended."""
        with SuiteSession(self) as run:
            app_id = run.submit(run.app("echo up; sleep 600"))
            self._until(lambda: run.lines(app_id) == ["up"], "the app's first line")
            run.scheduler.cancel(app_id)
            run.scheduler.cancel(app_id)
            assert run.wait(app_id).state is AppState.CANCELLED
            run.scheduler.cancel(app_id)
            assert run.describe(app_id).state is AppState.CANCELLED

    def test_cancelling_at_once(self) -> None:
        """Before anything has begun."""
        with SuiteSession(self) as run:
            for pause in (0.0, 0.03, 0.1):
                app_id = run.submit(run.app("sleep 600"))
                time.sleep(pause)
                run.scheduler.cancel(app_id)
                assert run.wait(app_id).state is AppState.CANCELLED

    def test_cancelling_ends_what_ignores_it(self) -> None:
        """Nothing is printed any more when the app is CANCELLED."""
        command = "trap '' TERM; i=0; while :; do echo $$i; i=$$((i+1)); sleep 0.05; done"
        with SuiteSession(self) as run:
            app_id = run.submit(run.app(command))
            self._until(lambda: len(run.lines(app_id)) > 1, "the app's first lines")
            run.scheduler.cancel(app_id)
            assert run.wait(app_id).state is AppState.CANCELLED
            run.expect_no_more_lines(app_id, "it goes on")

    def test_deleting_an_app_that_runs_ends_it(self) -> None:
        """First."""
        with SuiteSession(self) as run:
            app_id = run.submit(run.app("sleep 600"))
            run.scheduler.delete(app_id)
            assert run.scheduler.describe(app_id) is None

    def test_apps_are_listed_until_they_are_deleted(self) -> None:
        """Deleting twice does no harm."""
        with SuiteSession(self) as run:
            app_id = run.submit(run.app("true"))
            run.wait(app_id)
            second = run.submit(run.app("true"))
            run.wait(second)
            listed = self.create_scheduler(run.session).list()
            ids = [app.app_id for app in listed]
            assert {*ids} == {app_id, second}, "the apps of the session are listed"
            assert ids == [app_id, second], "the latest last"
            assert {app.state for app in listed} == {AppState.SUCCEEDED}
            others = self.create_scheduler(f"{run.session}-other").list()
            assert app_id not in [app.app_id for app in others], "another session's"
            run.scheduler.delete(app_id)
            run.scheduler.delete(app_id)
            assert run.scheduler.describe(app_id) is None, "it is deleted, and still there"
            assert app_id not in [app.app_id for app in run.scheduler.list()]

    def test_an_unknown_app_is_no_disaster(self) -> None:
        """It is not there; that is all."""
        run = SuiteSession(self)
        assert run.scheduler.describe("nothing-00000000") is None
        run.scheduler.cancel("nothing-00000000")
        run.scheduler.delete("nothing-00000000")
        try:
            list(run.scheduler.logs("nothing-00000000", "role", 0))
        except LookupError:
            return
        raise AssertionError("the logs of an app that is not there were given")

    def test_retries_start_again(self) -> None:
        """By the policies that it names: the replica that fails, its role, or everything."""
        first = f"sleep {self.start_skew}; exit 1"
        command = f"echo try; if [ ${{replica_id}} = 0 ]; then {first}; fi; sleep 600"
        with SuiteSession(self) as run:
            self._need(bool(run.can.retry_policies), "it starts nothing again")
            for policy in sorted(run.can.retry_policies, key=lambda p: p.value):
                fields = {"max_retries": 1, "retry_policy": policy, "num_replicas": 2}
                app_id = run.submit(run.app(command, **fields))
                status = run.wait(app_id)
                assert status.state is AppState.FAILED, (policy, status)
                tries = [run.lines(app_id, i).count("try") for i in (0, 1)]
                alone = policy is RetryPolicy.REPLICA
                assert tries == [2, 1 if alone else 2], f"{policy}: once, and one retry"

    def test_what_cannot_run_is_refused_before_it_is_submitted(self) -> None:
        """An app of nothing."""
        run = SuiteSession(self)
        for app in (AppDef("nothing"), AppDef("nothing", [Role("role")])):
            try:
                run.scheduler.dryrun(app, run.options)
            except ConfigError:
                continue
            raise AssertionError(f"{app} was taken")

    def _need(self, there: bool, reason: str) -> None:  # noqa: FBT001 a question and its answer
        """Skip the test where what it asks for is not promised."""
        if not there:
            raise unittest.SkipTest(reason)

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        limit = time.monotonic() + self.timeout
        while not holds():
            assert time.monotonic() < limit, f"{what} never came"
            time.sleep(0.05)
