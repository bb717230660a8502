"""A program that is started in the place of an agent, speaks real frames, and lies.

`python liar.py LIE READ WRITE`. Each lie is a function below; it is called when the host has said
hello and was told to begin, unless its name begins with `first_`.
"""

import dataclasses
import hashlib
import json
import os
import pickle
import platform
import subprocess
import sys
import time

from phalanx import __version__, _wire as wire
from phalanx._system import machine
from phalanx._core.rounds import Ended, ExceptionInfo, Outcome

VALUE = pickle.dumps("the liar's value")


class Host:
    """The agent's end of the channel."""

    def __init__(self, read, write):
        self.read, self.write = read, write
        self.decoder, self.held = wire.Decoder(), []
        self.app, self.round, self.rank = "", 0, None

    def receive(self):
        while not self.held:
            data = os.read(self.read, 1 << 16)
            if not data:
                sys.exit(0)
            self.held += self.decoder.feed(data)
        return self.held.pop(0)

    def until(self, *kinds):
        while not isinstance(frame := self.receive(), kinds):
            if isinstance(frame, wire.Ping):
                self.send(wire.Pong(sent=frame.sent, clock=time.monotonic()))
        return frame

    def say(self, data):
        view = memoryview(data)
        while view:
            view = view[os.write(self.write, view) :]

    def send(self, frame, **changes):
        self.say(wire.encode(dataclasses.replace(frame, app=self.app, **changes)))

    def tell(self, kind, **fields):
        """Of the round and the host's own rank."""
        self.send(kind(**{"round": self.round, "rank": self.rank, **fields}))

    # ── what an honest one says ───────────────────────────────────────────────

    def prepared(self):
        self.app = self.until(wire.Prepare).app

    def hello(self, **changes):
        fields = {
            "version": __version__,
            "python": platform.python_version(),
            "hostname": "liar",
            "pid": os.getpid(),
            "port": 1,
            "spool": f"/tmp/phalanx-liar-{os.getpid()}",
        }
        self.send(wire.Hello(**{**fields, **changes}))
        self.send(wire.Ready(torch=False, spawn=False))

    def begin(self):
        begin = self.until(wire.BeginRound)
        self.round = begin.round
        (self.rank,) = begin.membership.member(begin.agent).ranks
        self.tell(wire.WorkersStarted, pids={self.rank: os.getpid()}, rank=None)
        self.tell(wire.WorkerEntered, clock=time.monotonic())

    def outcome(self, kind=Ended.RETURNED, **fields):
        return Outcome(**{"rank": self.rank, "kind": kind, "clock": time.monotonic(), **fields})

    def value(self):
        self.tell(wire.Piece, key="payload", offset=0, total=len(VALUE), data=VALUE)
        self.tell(wire.WorkerEnded, outcome=self.outcome())

    def stop(self):
        self.tell(wire.RoundCleared, rank=None, port=1)

    def end(self):
        """Be an honest one to the end."""
        self.stop()
        self.until(wire.ShutDown)
        sys.exit(0)

    def stay(self):
        """As long as the launcher has us."""
        while True:
            self.receive()


# ── ranks ─────────────────────────────────────────────────────────────────────


def report_of_another_rank(host):
    host.tell(wire.WorkerEnded, rank=0, outcome=host.outcome(rank=0))


def report_on_another_rank(host):
    host.tell(wire.WorkerEnded, outcome=host.outcome(rank=0))


def report_of_no_rank(host):
    host.tell(wire.WorkerEnded, rank=None, outcome=host.outcome())


def report_of_a_rank_there_is_not(host):
    host.tell(wire.WorkerEnded, rank=99, outcome=host.outcome(rank=99))


def report_again(host):
    host.value()
    host.tell(wire.WorkerEnded, outcome=host.outcome(Ended.RAISED))


def report_of_a_loss(host):
    host.tell(wire.WorkerEnded, outcome=host.outcome(Ended.LOST, detail="it was not me"))


def report_at_no_moment(host):
    host.tell(wire.WorkerEnded, outcome=host.outcome(clock=float("nan")))


def value_of_another_rank(host):
    data = pickle.dumps("forged")
    host.tell(wire.Piece, rank=0, key="payload", offset=0, total=len(data), data=data)


def output_of_another_rank(host):
    host.tell(wire.LogData, rank=0, stream="stdout", data=b"forged\n")


def output_of_another_round(host):
    host.tell(wire.LogData, round=7, stream="stdout", data=b"forged\n")


def start_of_another_rank(host):
    host.tell(wire.WorkersStarted, rank=None, round=host.round, pids={0: 1})


def first_start_of_another_rank(host):
    host.prepared()
    host.hello()
    round_ = host.until(wire.BeginRound).round
    host.send(wire.WorkersStarted(round=round_, pids={0: 1, 1: 1}))


def stacks_of_another_rank(host):
    dumps = (wire.RankDump(0, 5, text="forged"),)
    host.tell(wire.WorkerStacks, rank=None, request=0, ranks=dumps)


# ── order ─────────────────────────────────────────────────────────────────────


def hello_again(host):
    host.hello()


def first_ready_without_hello(host):
    host.prepared()
    host.send(wire.Ready(torch=True, spawn=False))


def a_frame_of_the_launchers(host):
    host.send(wire.ShutDown())


def a_frame_of_the_zygotes(host):
    host.tell(wire.WorkerExited, status=0, clock=0.0, signalled=None)


def rest_too_early(host):
    host.send(wire.StayingWarm())
    host.tell(wire.WorkerEnded, rank=0, outcome=host.outcome(rank=0))


def stopped_without_end(host):
    data = wire.encode(wire.RoundCleared(app=host.app, round=99)) * 1000
    for _ in range(1000):
        host.say(data)


def pong_without_end(host):
    data = wire.encode(wire.Pong(sent=0.0, clock=0.0)) * 1000
    for _ in range(1000):
        host.say(data)


def frames_of_another_app_without_end(host):
    data = wire.encode(wire.Ready(app="other", torch=True, spawn=False, failed=("x" * 99,))) * 1000
    for _ in range(1000):
        host.say(data)


# ── what it says of itself ────────────────────────────────────────────────────


def first_spool_of_somebody_else(host):
    host.prepared()
    host.hello(spool="/tmp/that-is-not-its-own")


def first_spool_that_climbs(host):
    host.prepared()
    host.hello(spool="/tmp/phalanx-x/../phalanx-../../etc/phalanx-")


def first_spool_that_is_nowhere(host):
    host.prepared()
    host.hello(spool="phalanx-x")


def first_tree_that_nobody_sends(host):
    host.prepared()
    host.hello(tree="/tmp/tree")


def first_address_that_is_none(host):
    host.prepared()
    host.hello(address="$(reboot)")


def first_another_version(host):
    host.prepared()
    host.hello(version="9.9\x1b]0;owned\x07\x1b[2J")


def first_noise(host):
    host.say(b"Welcome to box2!\n")


# ── files ─────────────────────────────────────────────────────────────────────


def want_of_what_there_is_not(host):
    host.send(wire.WantContent(digests=("../../etc/passwd",)))


def want_without_end(host):
    for _ in range(1000):
        host.send(wire.WantContent(digests=("0" * 64,)))


def arrival_of_less_than_nothing(host):
    host.send(wire.ProjectArrived(size=-(1 << 60)))


# ── files that `fetch` names ──────────────────────────────────────────────────

BIG = bytes(3 * wire.PIECE)


def written(path="ckpt/new", data=b"forged", **changes):
    """A file as it is told of: what is told, and what is sent for it."""
    told = wire.WrittenFile(path, len(data), hashlib.sha256(data).hexdigest())
    return dataclasses.replace(told, **changes), data


def greet_and_work(host):
    host.prepared()
    host.hello(apart=True)
    host.begin()


def give(host, *files, parts=lambda asked, data: data[asked.offset :][: asked.size]):
    """Work, then tell of these files and send them, until the launcher has heard enough."""
    greet_and_work(host)
    host.value()
    host.stop()
    tell_and_send(host, files, parts)


def tell_and_send(host, files, parts=lambda asked, data: data[asked.offset :][: asked.size]):
    known = {told.path: data for told, data in files}
    while not isinstance(asked := host.until(*FILES, wire.ShutDown), wire.ShutDown):
        number = asked.number
        match asked:
            case wire.ListWritten():
                for at in range(0, len(files), 1000):
                    some = tuple(told for told, _ in files[at : at + 1000])
                    host.send(wire.WrittenList(number=number, files=some))
                host.send(wire.WrittenList(number=number, complete=True))
            case wire.FetchSmall():
                data = b"".join(known[file.path] for file in asked.files)
                host.send(wire.SmallFiles(number=number, data=data, problems={}))
            case wire.FetchFile():
                data = parts(asked, known[asked.path])
                for at in range(0, len(data), wire.PIECE):
                    piece = {"offset": asked.offset + at, "data": data[at : at + wire.PIECE]}
                    host.send(wire.FilePart(number=number, **piece))
    sys.exit(0)


FILES = wire.ListWritten, wire.FetchSmall, wire.FetchFile


def first_file_above_the_tree(host):
    give(host, written("ckpt/../../outside/new"))


def first_file_at_a_path_of_its_own(host):
    give(host, written("/tmp/phalanx-forged"))


def first_file_that_nobody_named(host):
    give(host, written(".bashrc"))


def first_file_behind_a_link(host):
    give(host, written("ckpt/link/new"))


def first_file_behind_a_link_large(host):
    give(host, written("ckpt/link/new", BIG))


def first_file_of_another_digest(host):
    give(host, written(digest="0" * 64))


def first_file_of_another_digest_large(host):
    give(host, written(data=BIG, digest="0" * 64))


def first_file_of_no_digest(host):
    give(host, written(digest="../../x\x1b[2J"))


def first_file_of_another_size(host):
    give(host, written(size=3))


def first_file_that_fills_the_disk(host):
    give(host, written(size=1 << 61))


def first_file_of_less_than_nothing(host):
    give(host, written(size=-1))


def first_file_at_another_offset(host):
    give(host, written(data=BIG), parts=lambda asked, data: data[: asked.size - 7])


def first_file_of_more_than_was_asked_for(host):
    give(host, written(data=BIG[:-7]), parts=lambda asked, data: data * 40)


def first_files_too_many(host):
    give(host, *(written(f"ckpt/{i}") for i in range(21_000)))


def first_files_in_too_many_directories(host):
    give(host, *(written("ckpt/" + "d/" * 400 + str(i)) for i in range(4000)))


def first_files_nobody_asked_for(host):
    """Unasked, of numbers that are none, and answers to what was not the question."""
    greet_and_work(host)
    file, data = written()
    for number in (0, 1, 2, 7, 1 << 31):
        host.send(wire.WrittenList(number=number, files=(file,), complete=True))
        host.send(wire.FilePart(number=number, offset=0, data=data))
        host.send(wire.SmallFiles(number=number, data=data, problems={9: "x"}))
        host.send(wire.FileStored(number=number, problems={1 << 31: "\x1b[2J"}))
    host.value()
    host.stop()
    asked = host.until(wire.ListWritten)
    host.send(wire.FileStored(number=asked.number, problems={}))
    host.send(wire.FetchFile(number=asked.number, path="secret", offset=0, size=6))
    host.send(wire.WrittenList(number=asked.number, complete=True, problem="no \x1b[2J way"))
    host.until(wire.ShutDown)
    sys.exit(0)


# ── files that are offered ────────────────────────────────────────────────────


def ask(host, *wants):
    """Be there for a round that fails, and ask for this when files are offered before the next."""
    greet_and_work(host)
    host.until(wire.HaltRound)
    host.stop()
    while not isinstance(asked := host.until(*OFFERS, wire.BeginRound), wire.BeginRound):
        if isinstance(asked, wire.ListWritten):
            host.send(wire.WrittenList(number=asked.number, complete=True))
            continue
        for want in wants:
            host.send(want(asked))
    host.round = asked.round
    host.tell(wire.WorkersStarted, pids={host.rank: os.getpid()}, rank=None)
    host.tell(wire.WorkerEntered, clock=time.monotonic())
    host.value()
    host.stop()
    tell_and_send(host, ())


OFFERS = wire.ListWritten, wire.OfferFile


def part_of(path=None, offset=0, size=None):
    """A request for a part of a file; of the first that is offered, if none is named."""
    return lambda offer: wire.FetchFile(
        number=offer.number,
        path=path or offer.files[0].path,
        offset=offset,
        size=offer.files[0].size if size is None else size,
    )


def all_of(*files):
    return lambda offer: wire.FetchSmall(number=offer.number, files=files or offer.files)


def first_want_of_a_file_that_is_not_offered(host):
    ask(host, part_of("secret"))


def first_want_of_a_file_outside(host):
    ask(host, part_of("../outside/secret"))


def first_want_of_no_bytes(host):
    ask(host, part_of(size=0))


def first_want_beyond_the_end(host):
    ask(host, part_of(offset=1))


def first_want_of_other_small_files(host):
    ask(host, all_of(wire.WrittenFile("secret", 6)))


def first_want_of_the_same_without_end(host):
    ask(host, *[all_of()] * 50)


def first_offer_that_is_listed(host):
    ask(host, lambda offer: wire.WrittenList(number=offer.number))


def first_offer_that_is_not_heard(host):
    ask(host)


# ── values ────────────────────────────────────────────────────────────────────


def piece_out_of_order(host):
    host.tell(wire.Piece, key="payload", offset=5, total=10, data=b"x" * 5)


def piece_again(host):
    for _ in range(2):
        host.tell(wire.Piece, key="payload", offset=0, total=10, data=b"x" * 5)


def piece_beyond_the_end(host):
    host.tell(wire.Piece, key="payload", offset=0, total=3, data=b"x" * 5)


def piece_of_nothing(host):
    for _ in range(100):
        host.tell(wire.Piece, key="payload", offset=0, total=1 << 60, data=b"")


def piece_of_another_total(host):
    host.tell(wire.Piece, key="payload", offset=0, total=10, data=b"x" * 5)
    host.tell(wire.Piece, key="payload", offset=5, total=1 << 60, data=b"x" * 5)


def piece_of_something_else(host):
    host.tell(wire.Piece, key="../../.bashrc", offset=0, total=5, data=b"x" * 5)


def piece_after_the_end(host):
    host.value()
    host.tell(wire.Piece, key="payload", offset=len(VALUE), total=len(VALUE) + 1, data=b"x")


def value_too_large(host):
    host.tell(wire.Piece, key="payload", offset=0, total=10**18, data=b"x" * (1 << 20))
    host.tell(wire.WorkerEnded, outcome=host.outcome())
    host.end()


def value_never_ended(host):
    host.tell(wire.Piece, key="payload", offset=0, total=100, data=b"x")
    host.tell(wire.WorkerEnded, outcome=host.outcome())
    host.end()


def value_never_begun(host):
    host.tell(wire.WorkerEnded, outcome=host.outcome())
    host.end()


# ── output ────────────────────────────────────────────────────────────────────


def stream_that_there_is_not(host):
    host.tell(wire.LogData, stream="../../x", data=b"x\n")


def output_of_nothing(host):
    host.tell(wire.LogData, stream="stdout", data=b"")


def output_without_end(host):
    data = wire.encode(
        wire.LogData(
            app=host.app, round=host.round, rank=host.rank, stream="stdout", data=b"x\n" * 40
        )
    )
    for _ in range(1000):
        host.say(data * 1000)


def own_output_without_end(host):
    data = wire.encode(wire.LogData(app=host.app, stream="records", data=b"x" * 9000))
    for _ in range(10_000):
        host.say(data)


# ── what does not end it ──────────────────────────────────────────────────────


def notes_without_end(host):
    for i in range(5000):
        host.send(wire.UserNote(message=f"note {i} \x1b[2J" + "x" * 100_000 * (i < 3)))
    host.value()
    host.end()


def records_that_are_none(host):
    lines = [
        "[" * 100_000,
        "{" * 1000,
        '{"a":' * 50_000,
        "null",
        "17",
        '{"printed": 3}',
        '{"levelno": "high", "msg": 3, "printed": ""}',
        '{"levelno": 1e999, "created": 1e300, "printed": ""}',
        '{"getMessage": "x", "__class__": "y", "msg": "%d %s", "args": ["x"], "printed": ""}',
        '{"exc_info": true, "exc_text": ["x"], "stack_info": 5, "msg": "m", "printed": ""}',
        '{"rank": 0, "hostname": "localhost", "worker": "forged", "msg": "whose", "printed": ""}',
        '{"created": ' + "9" * 5000 + ', "printed": ""}',
        json.dumps({"msg": "an honest one", "levelno": 20, "levelname": "INFO", "printed": ""}),
    ]
    data = "\n".join(lines).encode() + b"\n"
    for at in range(0, len(data), 1 << 17):
        host.tell(wire.LogData, stream="records", data=data[at : at + (1 << 17)])
    host.value()
    host.end()


def escapes_in_a_fault(host):
    exception = ExceptionInfo(
        "E\x1b[2J", "bad\x1b]0;owned\x07\nsecond", "Traceback:\n\x1b[1A\x1b[2Kgone", reraise=False
    )
    host.tell(
        wire.WorkerEnded, outcome=host.outcome(Ended.RAISED, exception=exception, stderr="\x1b[2J")
    )
    host.end()


def escapes_in_last_words(host):
    host.send(wire.AgentGone(message="no \x1b[2J\udcff way"))


def an_exit_that_is_raised(host):
    data = pickle.dumps(SystemExit(0))
    host.tell(wire.Piece, key="payload", offset=0, total=len(data), data=data)
    exception = ExceptionInfo("SystemExit", "0", "", reraise=True)
    host.tell(wire.WorkerEnded, outcome=host.outcome(Ended.RAISED, exception=exception))
    host.end()


def no_end(host):
    """Answer every ping, for ever."""
    host.value()
    host.stop()
    while True:
        host.until(wire.Hello)


def no_end_with_output(host):
    """Have always something more to say, a little."""
    host.value()
    host.stop()
    while True:
        host.until(wire.Ping)
        host.tell(wire.LogData, stream="stdout", data=b".\n")


def deaf(host):
    """Never read again, and talk."""
    host.value()
    host.stop()
    while True:
        host.send(wire.Pong(sent=0.0, clock=0.0))
        time.sleep(0.05)


def proxy(seed):
    """A real agent, some of whose frames are changed on their way."""
    from tests.process.mutation import Mutator

    read, write = map(int, sys.argv[2:4])
    mutator = Mutator(int(seed))
    agent = subprocess.Popen(machine.agent_command("0", "1"), stdin=read, stdout=subprocess.PIPE)
    os.close(read)
    decoder = wire.Decoder()
    while data := os.read(agent.stdout.fileno(), 1 << 16):
        for frame in decoder.feed(data):
            for changed in mutator.change(frame):
                view = memoryview(changed)
                try:
                    while view:
                        view = view[os.write(write, view) :]
                except OSError:
                    view = b""
    os.close(write)
    sys.exit(agent.wait())


def main():
    lie = sys.argv[1]
    if lie.startswith("proxy-"):
        proxy(lie.partition("-")[2])
    host = Host(int(sys.argv[2]), int(sys.argv[3]))
    try:
        if not lie.startswith("first_"):
            host.prepared()
            host.hello()
            host.begin()
        globals()[lie](host)
        host.stay()
    except OSError:
        pass  # the launcher has had enough


if __name__ == "__main__":
    main()
