"""Log specs: files, terminal, handlers of one's own, and records that workers make."""

import contextlib
import io
import logging
import os
import pickle
import sys
import time
import warnings
from pathlib import Path

import pytest

import phalanx
from phalanx import DefaultLogSpec, LogSpec


class Take(logging.Handler):
    """Keeps what it is given."""

    def __init__(self, level=logging.NOTSET):
        super().__init__(level)
        self.records = []

    def emit(self, record):
        self.records.append(record)

    @property
    def messages(self):
        return [record.getMessage() for record in self.records]


class Map(LogSpec):
    def __init__(self, table):
        self.table = table

    def get_map(self):
        return self.table


def say():
    print("out", os.environ["RANK"])
    print("err", os.environ["RANK"], file=sys.stderr)


def suffixes(directory="logs"):
    return sorted(p.name.partition("-localhost")[2] for p in Path(directory).iterdir())


# ── the usual one, and its constructors ───────────────────────────────────────


def test_the_default_has_files_for_agent_and_workers_and_shows_rank_0(capfd):
    """As without a log spec at all."""
    phalanx.launch(say, workers_per_host=2, log_spec=DefaultLogSpec())
    assert suffixes() == [".log", "[0].log", "[1].log"]
    assert capfd.readouterr() == ("out 0\n", "err 0\n")
    (agent,) = Path("logs").glob("*localhost.log")
    assert "workers started" in agent.read_text()


@pytest.mark.parametrize(
    ("spec", "shown", "files"),
    [
        (DefaultLogSpec.ranks(1), ["err 1", "out 1"], True),
        (
            DefaultLogSpec.ranks(0, 1),
            [f"[localhost rank {r}] {s} {r}" for r in (0, 1) for s in ("err", "out")],
            True,
        ),
        (
            DefaultLogSpec.all_ranks(),
            [f"[localhost rank {r}] {s} {r}" for r in (0, 1) for s in ("err", "out")],
            True,
        ),
        (DefaultLogSpec.files_only(), [], True),
        (DefaultLogSpec.nothing(), [], False),
        (DefaultLogSpec(log_dir=None), ["err 0", "out 0"], False),
    ],
)
def test_constructors(spec, shown, files, capfd):
    """These ranks, all with prefixes, files only, nothing."""
    phalanx.launch(say, workers_per_host=2, log_spec=spec)
    printed = capfd.readouterr()
    assert sorted(printed.out.splitlines()) == sorted(s for s in shown if "out" in s)
    assert sorted(printed.err.splitlines()) == sorted(s for s in shown if "err" in s)
    assert Path("logs").exists() == files


def test_another_directory_and_a_map_of_files():
    """One file may take several workers, each line with a name."""
    phalanx.launch(say, workers_per_host=2, log_spec=DefaultLogSpec.files_only("elsewhere/deep"))
    assert suffixes("elsewhere/deep") == [".log", "[0].log", "[1].log"]
    spec = DefaultLogSpec.from_file_map(
        {"both": ["localhost[0]", "localhost[1]"], "agent": ["localhost"]}, log_dir="mapped"
    )
    phalanx.launch(say, workers_per_host=2, log_spec=spec)
    (both,) = Path("mapped").glob("*-both.log")
    assert sorted(both.read_text().splitlines()) == [
        f"[localhost[{r}]] {s} {r}" for r in (0, 1) for s in ("err", "out")
    ]
    assert next(Path("mapped").glob("*-agent.log")).read_text()


def test_basic_goes_on_with_its_files_at_every_launch(capfd):
    """The names that torchrunx's users know."""
    spec = DefaultLogSpec.basic(["localhost"], 2, log_dir="basic", stream=False)
    assert sorted(spec.get_map()) == ["localhost", "localhost[0]", "localhost[1]"]
    assert all(isinstance(h, logging.Handler) for hs in spec.get_map().values() for h in hs)
    for _ in range(2):
        phalanx.launch(say, workers_per_host=2, log_spec=spec)
    (path,) = Path("basic").glob("*[[]1].log")
    assert sorted(path.read_text().splitlines()) == ["err 1", "err 1", "out 1", "out 1"]
    assert capfd.readouterr().out == ""
    assert pickle.loads(pickle.dumps(phalanx.Launcher(log_spec=spec))).log_spec.get_map().keys()


def test_a_spec_used_by_two_launches_at_once_loses_nothing():
    """The file is closed when the last has ended."""
    spec = DefaultLogSpec.basic(["localhost"], 1, log_dir="shared", stream=False)

    def count(n):
        for i in range(n):
            print(f"line {i}")
            if i % 100 == 0:
                time.sleep(0.01)

    with phalanx.Launcher(workers_per_host=1, log_spec=spec) as launcher:
        long = launcher.start(count, args=(20_000,))
        for _ in range(5):
            launcher.run(count, args=(100,))
        long.result()
    (path,) = Path("shared").glob("*[[]0].log")
    assert len(path.read_text().splitlines()) == 20_500


def test_a_subclass_of_the_default_adds_a_handler():
    """`get_map` of the usual one, and one's own."""
    take = Take()

    class Both(DefaultLogSpec):
        def for_members(self, members):
            table = super().for_members(members)
            table["localhost[1]"].append(take)
            return table

    phalanx.launch(say, workers_per_host=2, log_spec=Both())
    assert sorted(take.messages) == ["err 1", "out 1"]
    assert len(suffixes()) == 3


# ── records ───────────────────────────────────────────────────────────────────


def test_records_keep_level_name_and_time_and_nothing_comes_twice(capfd):
    """With the worker's own configuration; what it would have printed is where output goes."""

    def work():
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
        logging.getLogger("my.part").warning("careful %d", 7, extra={"step": 3})
        logging.getLogger("my.part").debug("not let through")
        print("plain")
        try:
            1 / 0
        except ZeroDivisionError:
            logging.exception("failed")
        warnings.warn("old", stacklevel=1)
        return time.time()

    take = Take()
    file = DefaultLogSpec.from_file_map({"raw": ["localhost[0]"]}).get_map()["localhost[0]"]
    agents = Take()
    when = phalanx.launch(
        work,
        workers_per_host=1,
        log_spec=Map({"localhost[0]": [take, *file], "localhost": [agents]}),
    ).rank(0)
    by_name = {r.name: r for r in take.records if r.name != "localhost[0]"}
    careful = by_name["my.part"]
    assert (careful.levelno, careful.getMessage(), careful.step) == (
        logging.WARNING,
        "careful 7",
        3,
    )
    assert abs(careful.created - when) < 30
    assert (careful.rank, careful.local_rank, careful.hostname) == (0, 0, "localhost")
    assert careful.worker == "localhost[0]"
    assert "ZeroDivisionError" in by_name["root"].exc_text
    raw = [r for r in take.records if r.name == "localhost[0]"]
    assert [r.getMessage() for r in raw][0] == "plain"
    assert sum("careful" in message for message in take.messages) == 1
    text = Path(file[0].baseFilename).read_text()
    assert "WARNING my.part careful 7\n" in text
    assert "ZeroDivisionError" in text
    assert agents.records[0].name == "localhost"
    assert {r.levelno for r in agents.records} == {logging.INFO}


def test_a_record_of_any_size_arrives():
    """They travel in pieces."""

    def work():
        for size in (10, 300_000, 3_000_000):
            logging.getLogger("big").warning("x" * size)

    take = Take()
    phalanx.launch(work, workers_per_host=1, log_spec=Map({"localhost[0]": [take]}))
    assert [len(m) for m in take.messages] == [10, 300_000, 3_000_000]


def test_recording_changes_nothing_that_the_worker_sees():
    """Redirected streams, subclasses, arguments whose repr raises, closed descriptors."""

    def work():
        class Bad:
            def __repr__(self):
                raise ValueError("no repr")

        class Counting(logging.StreamHandler):
            count = 0

            def emit(self, record):
                Counting.count += 1

        seen = io.StringIO()
        with contextlib.redirect_stderr(seen):
            logging.getLogger("redirected").warning("into the buffer")
        counting = logging.getLogger("counting")
        counting.addHandler(Counting())
        counting.propagate = False
        counting.warning("one")
        logging.raiseExceptions = False
        logging.getLogger("bad").warning("%d", Bad())
        os.closerange(3, 64)
        with open("users-own", "w") as own:
            logging.getLogger("after").warning("closed")
            own.write("mine")
        return seen.getvalue(), Counting.count, Path("users-own").read_text()

    take = Take()
    values = phalanx.launch(work, workers_per_host=1, log_spec=Map({"localhost[0]": [take]})).rank(
        0
    )
    assert values == ("into the buffer\n", 1, "mine")
    assert "closed" in take.messages


def test_without_handlers_nothing_is_recorded():
    """The worker's logging is as it was."""

    def work():
        return logging.Logger.callHandlers.__module__

    assert phalanx.launch(work, workers_per_host=1).rank(0) == "logging"


# ── handlers that misbehave ───────────────────────────────────────────────────


def test_a_handler_that_blocks_holds_up_neither_the_others_nor_the_launch(script):
    """Nor the end of the program."""
    done = script(
        """
        import logging, phalanx, time
        class Block(logging.Handler):
            def emit(self, record): time.sleep(1000)
        class Take(logging.Handler):
            seen = []
            def emit(self, record): self.seen.append(record.getMessage())
        class Mine(phalanx.LogSpec):
            def get_map(self): return {"localhost[0]": [Block(), Take()]}
        def work():
            for i in range(1000): print(i)
        phalanx.launch(work, workers_per_host=1, log_spec=Mine())
        print(len(Take.seen))
        """,
        timeout=40,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1000\n"
    assert "no longer waiting for it" in done.stderr


def test_a_slow_handler_gets_everything():
    """As long as it gets on."""

    class Slow(Take):
        def emit(self, record):
            time.sleep(0.001)
            super().emit(record)

    take = Slow()

    def work():
        for i in range(1000):
            print(i)

    phalanx.launch(work, workers_per_host=1, log_spec=Map({"localhost[0]": [take]}))
    assert take.messages == [str(i) for i in range(1000)]


def test_handlers_of_the_standard_library():
    """Levels, filters, formatters, files, queues."""
    import logging.handlers
    import queue

    held = queue.Queue()
    file = logging.FileHandler("own.txt", delay=True)
    file.setFormatter(logging.Formatter("%(worker)s|%(rank)d|%(message)s"))
    errors = Take(logging.ERROR)
    rotating = logging.handlers.RotatingFileHandler("turn.txt", maxBytes=500, backupCount=3)
    handlers = [file, errors, rotating, logging.handlers.QueueHandler(held)]
    phalanx.launch(
        say, workers_per_host=2, log_spec=Map({f"localhost[{r}]": handlers for r in (0, 1)})
    )
    file.close()
    rotating.close()
    assert sorted(Path("own.txt").read_text().splitlines()) == [
        f"localhost[{r}]|{r}|{s} {r}" for r in (0, 1) for s in ("err", "out")
    ]
    assert errors.records == []
    assert held.qsize() == 4


def test_a_name_that_is_no_worker_is_said(caplog):
    """A misspelling is not silent; what is no map at all is refused."""
    phalanx.launch(int, workers_per_host=1, log_spec=Map({"localhost[7]": [Take()]}))
    assert "no agent or worker named 'localhost[7]'" in caplog.text
    with pytest.raises(phalanx.ConfigError, match="lists of handlers"):
        phalanx.launch(int, workers_per_host=1, log_spec=Map({"localhost[0]": "nothing"}))
    with pytest.raises(phalanx.ConfigError, match="must be a LogSpec instance"):
        phalanx.launch(int, workers_per_host=1, log_spec=DefaultLogSpec)


def test_a_fork_during_a_launch_can_launch_itself(script):
    """No lock of ours stays held in it."""
    done = script(
        """
        import multiprocessing, phalanx, sys, time
        def chat():
            limit = time.monotonic() + 3
            while time.monotonic() < limit: print("x" * 100)
        def child(): sys.exit(list(phalanx.launch(int, workers_per_host=1)) != [0])
        if __name__ == "__main__":
            app = phalanx.Launcher(workers_per_host=1).start(chat)
            time.sleep(1)
            process = multiprocessing.get_context("fork").Process(target=child)
            process.start(); process.join(20)
            print("code", process.exitcode, file=sys.stderr)
            app.result()
        """
    )
    assert "code 0" in done.stderr


def test_streams_that_only_look_like_files(capsys):
    """Text goes through them, not around them."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
        phalanx.launch(say, workers_per_host=1)
    stream.flush()
    assert sorted(stream.buffer.getvalue().splitlines()) == [b"err 0", b"out 0"]


def test_a_stderr_that_only_pretends_to_be_a_terminal():
    """Output is taken all the same."""

    class Tee:
        def write(self, text):
            return len(text)

        def flush(self):
            pass

        def isatty(self):
            return True

    def slow():
        for i in range(12):
            print("line", i, flush=True)
            time.sleep(0.1)

    with contextlib.redirect_stderr(Tee()):
        phalanx.launch(slow, workers_per_host=1)
    (path,) = Path("logs").glob("*].log")
    assert len(path.read_text().splitlines()) == 12
