"""Results and exceptions of odd kinds, from workers that break their own means to report."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import phalanx
from phalanx import AgentLost, ConfigError, LaunchError, WorkerFailed
from tests.conftest import is_alive, phalanx_processes, wait_until
from tests.process.test_cleanup import agents, find


@pytest.mark.parametrize("text", ["漢" * 300_000, "a\ud800b", "x" * 1_000_000, "\0"])
def test_any_message_arrives(text):
    """Long, wide, not encodable: the exception is the user's own."""

    def fail():
        raise ValueError(text)

    with pytest.raises(ValueError) as caught:
        phalanx.launch(fail, workers_per_host=1)
    assert caught.value.args == (text,)
    assert "in fail" in caught.value.__notes__[0]


@pytest.mark.parametrize("hook", [None, lambda *_: 1 / 0])
def test_a_broken_excepthook_hides_nothing(hook):
    """Python's own takes its place."""

    def fail():
        sys.excepthook = hook
        raise LookupError("seen")

    with pytest.raises(LookupError, match="seen"):
        phalanx.launch(fail, workers_per_host=1)


@pytest.mark.parametrize("fails", [False, True])
def test_a_worker_that_closes_all_descriptors_still_reports(fails):
    """The report is left in a file."""

    def f():
        os.closerange(3, 1000)
        if fails:
            raise KeyError("closed")
        return 5

    if fails:
        with pytest.raises(KeyError, match="closed"):
            phalanx.launch(f, workers_per_host=1)
    else:
        assert phalanx.launch(f, workers_per_host=1).rank(0) == 5


@pytest.mark.parametrize("end", ["return", "raise", "exit"])
def test_a_forked_child_of_the_function_is_not_the_rank(end):
    """However the child ends, the value is the parent's."""

    def f():
        child = os.fork()
        if child == 0:
            if end == "raise":
                raise ValueError("child")
            if end == "exit":
                sys.exit(3)
            return "child"
        os.waitpid(child, 0)
        return "parent"

    assert phalanx.launch(f, workers_per_host=1).rank(0) == "parent"


def test_exceptions_keep_slots_and_special_fields(script):
    """What is not in __dict__ comes home as well."""
    done = script("""
        import phalanx

        class Slotted(Exception):
            __slots__ = ("code",)
            def __init__(self, code):
                super().__init__("slotted")
                self.code = code

        class Refuses(ValueError):
            def add_note(self, note):
                raise RuntimeError("no notes")

        def fail(which):
            if which == 0:
                raise Slotted(7)
            if which == 1:
                raise Refuses("r")
            import no_such_module_anywhere

        for which in range(3):
            try:
                phalanx.launch(fail, {"which": which}, workers_per_host=1)
            except Exception as error:
                print("got", type(error).__name__, getattr(error, "code", None),
                      getattr(error, "name", None), len(error.__notes__))
    """)
    assert [line for line in done.stdout.splitlines() if line.startswith("got")] == [
        "got Slotted 7 None 1",
        "got Refuses None None 1",
        "got ModuleNotFoundError None no_such_module_anywhere 1",
    ], done.stderr


def test_values_with_slots_of_main_come_back(script):
    """Dataclasses, enums and named tuples of __main__, equal to the caller's own."""
    done = script("""
        import dataclasses, enum, typing, phalanx

        @dataclasses.dataclass(slots=True)
        class Slots:
            a: int

        @dataclasses.dataclass(frozen=True, slots=True)
        class Frozen:
            a: int

        class Plain:
            __slots__ = ("a", "b")

        class Color(enum.Enum):
            RED = 1

        class Pair(typing.NamedTuple):
            a: int

        def f():
            plain = Plain()
            plain.a = 3
            return Slots(1), Frozen(2), plain, Color.RED, Pair(4)

        slots, frozen, plain, color, pair = phalanx.launch(f, workers_per_host=1).rank(0)
        print(slots == Slots(1), frozen == Frozen(2), plain.a, type(plain) is Plain,
              color is Color.RED, pair == Pair(4))
    """)
    assert done.stdout.strip() == "True True 3 True True True", done.stderr


class _Loop(Exception):
    def __init__(self, shape):
        super().__init__("looped")
        if shape == "itself":
            self.me = self
        elif shape == "each other":
            self.other = _Loop("plain")
            self.other.other = self
        elif shape == "with a lock":
            self.me = [self]
            self.lock = __import__("threading").Lock()
        elif shape == "deep":
            inner = self
            for _ in range(40):
                inner.inner = inner = _Loop("plain")


@pytest.mark.parametrize("shape", ["itself", "each other", "with a lock", "deep"])
def test_exceptions_that_refer_to_themselves_arrive_at_once(shape):
    """Cycles are kept, or cut where something cannot be pickled."""

    def fail():
        raise _Loop(shape)

    with pytest.raises(_Loop) as caught:
        phalanx.launch(fail, workers_per_host=1)
    if shape == "itself":
        assert caught.value.me is caught.value


def test_an_exception_that_refuses_attributes_keeps_its_type(script):
    """A frozen dataclass, with its notes."""
    done = script("""
        import dataclasses, phalanx

        @dataclasses.dataclass(frozen=True)
        class E(Exception):
            code: int

        def fail():
            raise E(7)

        try:
            phalanx.launch(fail, workers_per_host=1)
        except E as error:
            print("got", error.code, "in fail" in error.__notes__[0])
    """)
    assert "got 7 True" in done.stdout, done.stderr


@pytest.mark.parametrize("fails", [False, True])
def test_a_stream_that_raises_hides_neither_value_nor_exception(fails):
    """The function has replaced it."""

    def f():
        class Gone:
            def write(self, text):
                raise RuntimeError("sink is gone")

            flush = write

        sys.stdout = sys.stderr = Gone()
        if fails:
            raise KeyError("mine")
        return 1

    if fails:
        with pytest.raises(KeyError, match="mine"):
            phalanx.launch(f, workers_per_host=1)
    else:
        assert phalanx.launch(f, workers_per_host=1).rank(0) == 1


@pytest.mark.parametrize("fails", [False, True])
def test_a_worker_that_gives_up_its_rights_still_returns(fails):
    """Its payload file is open already."""
    if os.geteuid() != 0:
        pytest.skip("only root has rights to give up")

    def f():
        os.setgid(65534)
        os.setuid(65534)
        if fails:
            raise KeyError("nobody")
        return os.getuid()

    if fails:
        with pytest.raises(KeyError, match="nobody"):
            phalanx.launch(f, workers_per_host=1)
    else:
        assert phalanx.launch(f, workers_per_host=1).rank(0) == 65534
