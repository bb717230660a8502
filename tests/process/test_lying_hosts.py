"""A host that lies loses its own work, and nothing else: a program in the place of one agent."""

import itertools
import logging
import os
import pathlib
import re
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import phalanx
from phalanx._system import machine
from phalanx.errors import LaunchError, ResultError, WorkerFailed
from phalanx._launcher.project import remote_files
from phalanx._launcher.transport import agent_process
from phalanx._logs.spec import LogSpec
from phalanx._rendezvous import coordinator
from tests.process import two_hosts
from tests.process.mutation import Mutator


def work():
    rank = phalanx.context().rank
    print(f"rank {rank} is honest")
    return f"value of rank {rank}"


@pytest.fixture
def second(monkeypatch):
    """Have the second agent that is started be another program."""

    def be(lie):
        honest = machine.agent_command
        count = itertools.count()

        def command(*arguments, env_file=None):
            if next(count) != 1:
                return honest(*arguments, env_file=env_file)
            return [sys.executable, "-m", "tests.process.liar", lie, *arguments]

        monkeypatch.setattr(agent_process.machine, "agent_command", command)
        root = str(machine.__file__).rpartition("/src/")[0]
        monkeypatch.setenv("PYTHONPATH", root)

    return be


def launcher(**options):
    return phalanx.Launcher(
        hostnames=["localhost", "localhost"], workers_per_host=1, backend=None, **options
    )


def elastic(**options):
    return launcher(min_hosts=1, max_hosts=2, **options)


LIES = {
    "report_of_another_rank": "a WorkerEnded of rank 0, which is not one of its own",
    "report_on_another_rank": "a WorkerEnded of rank 1 on rank 0",
    "report_of_no_rank": "a WorkerEnded without a rank",
    "report_of_a_rank_there_is_not": "a WorkerEnded of rank 99, which is not one of its own",
    "report_of_a_loss": "that rank 1 is lost",
    "report_at_no_moment": "WorkerEnded",
    "value_of_another_rank": "a Piece of rank 0, which is not one of its own",
    "output_of_another_rank": "a LogData of rank 0, which is not one of its own",
    "output_of_another_round": "output of round 7, in which it is not",
    "stacks_of_another_rank": "the stacks of rank 0, which is not one of its own",
    "start_of_another_rank": "a second time that round 1 has started",
    "first_start_of_another_rank": "that it has started rank 0",
    "hello_again": "a second hello",
    "first_ready_without_hello": "a Ready before it said hello",
    "a_frame_of_the_launchers": "a ShutDown, which agents do not send",
    "a_frame_of_the_zygotes": "a WorkerExited, which agents do not send",
    "rest_too_early": "StayingWarm|a WorkerEnded of rank 0",
    "stopped_without_end": r"\d+ frames",
    "pong_without_end": r"\d+ frames",
    "frames_of_another_app_without_end": r"\d+ frames",
    "first_spool_of_somebody_else": "as its spool directory",
    "first_spool_that_climbs": "as its spool directory",
    "first_spool_that_is_nowhere": "'phalanx-x' as its own",
    "first_tree_that_nobody_sends": "that it wants the project",
    "first_address_that_is_none": "as its address",
    "first_noise": "not a frame: b'Welcome to box2!",
    "want_of_what_there_is_not": "a request for what is not sent to it",
    "want_without_end": "a request for",
    "arrival_of_less_than_nothing": "Arrived|bytes have arrived",
    "piece_out_of_order": "a piece at 5 of 10 bytes out of its turn",
    "piece_again": "a piece at 0 of 10 bytes out of its turn",
    "piece_beyond_the_end": "5 bytes of a value of 3",
    "piece_of_nothing": "an empty piece",
    "piece_of_another_total": "out of its turn",
    "piece_of_something_else": "which nobody wants",
    "stream_that_there_is_not": "of the stream '../../x'",
    "output_of_nothing": "0 bytes of the stream",
    "output_without_end": "more output than it was told to send at once",
    "own_output_without_end": "more (output than it was told|than 64 MiB)",
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_ends_its_host_and_the_others_go_on(second, lie, caplog, capfd):
    """With room to go on, the other host has the app to itself; the user is told why."""
    second(lie)
    result = elastic().run(work)
    assert result.values == ("value of rank 0",)
    told = f"is lost: it sent .*{LIES[lie]}.* and was removed from the app"
    assert re.search(told, caplog.text), caplog.text
    assert "forged" not in capfd.readouterr().out + caplog.text


@pytest.mark.parametrize("lie", ["report_of_another_rank", "first_noise", "output_without_end"])
def test_a_lie_is_a_clear_error_where_all_hosts_are_needed(second, lie):
    """And the honest host is stopped in order."""
    second(lie)
    with pytest.raises(LaunchError, match=f"it sent .*{LIES[lie]}.*was removed from the app"):
        launcher().run(work)


@pytest.mark.parametrize("lie", ["report_again", "piece_after_the_end"])
def test_a_lie_after_the_end_spoils_nothing(second, lie):
    """Everything was said already."""
    second(lie)
    assert launcher().run(work).values == ("value of rank 0", "the liar's value")


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        ("value_too_large", "value of 1000000000000000000 bytes.*cannot store it"),
        ("value_never_ended", "returned a value.*arrived incomplete"),
        ("value_never_begun", "returned a value.*arrived incomplete"),
    ],
)
def test_a_value_that_does_not_come_is_that_ranks_failure(second, lie, why):
    """Nobody's value takes its place."""
    second(lie)
    with pytest.raises(ResultError, match=why) as failed:
        launcher().run(work)
    assert failed.value.rank == 1


FILE_LIES = {
    "first_file_above_the_tree": "it offers ckpt/../../outside/new, which was not requested",
    "first_file_at_a_path_of_its_own": "it offers /tmp/phalanx-forged, which was not requested",
    "first_file_that_nobody_named": "it offers .bashrc, which was not requested",
    "first_file_behind_a_link": "ckpt/link/new .*link is a link",
    "first_file_behind_a_link_large": "ckpt/link/new .*link is a link",
    "first_file_of_another_digest": "ckpt/new .*changed or damaged",
    "first_file_of_another_digest_large": "ckpt/new .*changed or damaged",
    "first_file_of_no_digest": "ckpt/new .*cannot be read",
    "first_file_of_another_size": "ckpt/new .*it sent other bytes",
    "first_file_that_fills_the_disk": "ckpt/new .*(No space left|too large)",
    "first_file_of_less_than_nothing": "the host was lost",
    "first_file_at_another_offset": "ckpt/new .*it sent other bytes",
    "first_file_of_more_than_was_asked_for": "ckpt/new .*it sent other bytes",
    "first_files_too_many": "more than 20000 files match",
    "first_files_in_too_many_directories": "too many directories",
    "first_files_nobody_asked_for": r"no \\x1b\[2J way",
}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A directory with files of ours, and a link that leads out of it."""
    (tmp_path / "home" / "ckpt").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    (tmp_path / "home" / "secret").write_text("secret")
    (tmp_path / "home" / "ckpt" / "new").write_text("mine")
    (tmp_path / "home" / "ckpt" / "link").symlink_to(tmp_path / "outside")
    return tmp_path


def files_below(place):
    return {str(p.relative_to(place)): p.read_text() for p in place.rglob("*") if p.is_file()}


@pytest.mark.parametrize("lie", FILE_LIES)
def test_a_lie_about_files_fails_their_way_home_alone(second, lie, home):
    """All values are there, home is as it was, and so is what is outside of it."""
    second(lie)
    quiet = phalanx.DefaultLogSpec.nothing()
    before = files_below(home)
    with pytest.raises(phalanx.FetchError, match=FILE_LIES[lie]) as caught:
        launcher(fetch=["ckpt/**"], log_spec=quiet).run(work)
    assert caught.value.result.values == ("value of rank 0", "the liar's value")
    assert "\x1b" not in str(caught.value)
    assert files_below(home) == before


WANTS = {
    "first_want_of_a_file_that_is_not_offered": "it requested secret, more than it was offered",
    "first_want_of_a_file_outside": "it requested ../outside/secret, more than it was offered",
    "first_want_of_no_bytes": "it requested ckpt/step0, more than it was offered",
    "first_want_beyond_the_end": "it requested ckpt/step0, more than it was offered",
    "first_want_of_other_small_files": "it requested secret, more than it was offered",
    "first_want_of_the_same_without_end": "it requested ckpt/step0, .*, more than it was offered",
    "first_offer_that_is_listed": "it sent a WrittenList",
    "first_offer_that_is_not_heard": "no response for 1 s",
}


def fail_once():
    """Write two small files and two large ones in the first round."""
    context = phalanx.context()
    if context.round == 1:
        for number in range(4):
            pathlib.Path(f"ckpt/step{number}").write_bytes(bytes((number // 2) * 100_000 + 9))
        raise RuntimeError("for another round")
    return f"value of rank {context.rank}"


@pytest.mark.parametrize("lie", WANTS)
def test_a_lie_of_a_host_that_is_offered_files_costs_itself_alone(
    second, lie, home, caplog, monkeypatch
):
    """It gets none, is named, and is waited for once; the next round begins."""
    monkeypatch.setattr(remote_files, "_STALLED", 1.0)
    second(lie)
    quiet = phalanx.DefaultLogSpec.nothing()
    result = launcher(fetch=["ckpt/step*"], max_restarts=1, log_spec=quiet).run(fail_once)
    assert result.values == ("value of rank 0", "the liar's value")
    told = f"cannot copy ckpt/step0.* to localhost: {WANTS[lie]}"
    assert re.search(told, caplog.text), caplog.text
    assert len(files_below(home / "home")) == 6


def test_another_version_cannot_write_to_the_terminal(second):
    """Its version is told in one line of text."""
    second("first_another_version")
    with pytest.raises(LaunchError, match=r"it runs phalanx 9\.9\\x1b\]0;owned\\x07") as failed:
        launcher().run(work)
    assert "\x1b" not in str(failed.value)


def test_notes_are_few_and_short(second, caplog):
    """Whatever a host wants the user to read."""
    second("notes_without_end")
    assert len(launcher().run(work)) == 2
    notes = [r.getMessage() for r in caplog.records if "note" in r.getMessage()]
    assert len(notes) == 65
    assert notes[-1].endswith("more notes of that host are left out")
    assert all(len(note) < 5000 and "\x1b" not in note for note in notes)


class Collected(logging.Handler):
    def __init__(self):
        super().__init__()
        self.found = []

    def emit(self, record):
        record.getMessage()
        logging.Formatter("%(asctime)s %(name)s %(levelname)s %(process)d").format(record)
        self.found.append((record.rank, record.getMessage()))


class Handled(LogSpec):
    def __init__(self, handler):
        self.handler = handler

    def get_map(self):
        return {f"localhost{n}[0]": [self.handler] for n in ("", "#2")}


def test_records_that_are_none_cost_themselves_alone(second, caplog, capfd):
    """A handler gets every other record, of this host and of others, as what it is."""
    second("records_that_are_none")
    handler = Collected()
    result = launcher(log_spec=Handled(handler)).run(work)
    assert result.values == ("value of rank 0", "the liar's value")
    assert (0, "rank 0 is honest") in handler.found
    assert (1, "an honest one") in handler.found
    assert (1, "whose") in handler.found
    assert (1, "%d %s") in handler.found
    assert sum("lost a log record" in r.getMessage() for r in caplog.records) == 1
    assert "Logging error" not in capfd.readouterr().err


def test_what_a_host_says_of_a_failure_is_text(second):
    """It cannot move the cursor."""
    second("escapes_in_a_fault")
    with pytest.raises(WorkerFailed) as failed:
        launcher().run(work)
    text = "\n".join([str(failed.value), *failed.value.__notes__])
    assert "\x1b" not in text
    assert "\\x1b[1A\\x1b[2Kgone" in text


def test_last_words_are_text(second):
    """Likewise."""
    second("escapes_in_last_words")
    with pytest.raises(LaunchError, match=r"no \\x1b\[2J\\udcff way"):
        launcher().run(work)


def test_an_exit_is_not_raised_again(second):
    """Workers do not send those."""
    second("an_exit_that_is_raised")
    with pytest.raises(WorkerFailed, match="SystemExit"):
        launcher().run(work)


@pytest.mark.parametrize("lie", ["no_end", "no_end_with_output", "deaf"])
def test_a_host_that_does_not_end_is_not_waited_for(second, lie, caplog):
    """Its heartbeats alone, or a line now and then, do not keep a launch that has ended."""
    second(lie)
    result = launcher(host_timeout=1.0, stop_grace=1.0).run(work)
    assert result.values == ("value of rank 0", "the liar's value")


def test_mutated_frames_of_a_real_agent(second):
    """Two launches; more are tried by hand."""
    for seed in range(2):
        mutated_launch(second, seed)


def mutated_launch(second, seed):
    """The honest host's value, or an error; one that says it still works is cancelled."""
    second(f"proxy-{seed}")
    app = elastic(host_timeout=3.0, start_timeout=20.0, stop_grace=1.0).start(work)
    app.wait(20)
    app.cancel(0.5)
    assert app.wait(30).state.is_final
    try:
        values = app.result().values
    except LaunchError as error:
        assert str(error)
    else:
        assert values[0] == "value of rank 0", values


@pytest.mark.parametrize("first", (0, 1000))
def test_mutated_frames(first, monkeypatch):
    """Seeded; more are tried by hand, with `PHALANX_MUTATIONS=1000`."""
    monkeypatch.setattr(coordinator, "CONFIRM_TIMEOUT", 0.5)
    for seed in range(first, first + int(os.environ.get("PHALANX_MUTATIONS", "8"))):
        two_hosts.launch(Mutator(seed, rate=0.3))


@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.integers(0, 1 << 40), st.floats(0.05, 1.0))
def test_mutated_frames_at_any_rate(seed, rate):
    """From a frame now and then to all of them."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(coordinator, "CONFIRM_TIMEOUT", 0.5)
        two_hosts.launch(Mutator(seed, rate))
