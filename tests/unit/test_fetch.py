"""Files from other hosts: which are meant, whose count, and what a host that lies can do: nothing."""

import asyncio
import hashlib
import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

import phalanx
from phalanx import _wire as wire
from phalanx._system.filetree import FileTree
from phalanx._launcher.project.fetcher import FileFetcher
from phalanx._launcher.project.remote_files import FILES_LIMIT, ReportedFiles, RemoteFiles
from phalanx._launcher.project.file_versions import FileVersion, choose
from phalanx._launcher.agents.frame_checks import FrameChecker
from phalanx._core.patterns import Patterns, is_inside, shown, why_too_long
from phalanx._rendezvous import protocol as p
from phalanx._rendezvous.coordinator import Coordinator
from phalanx._rendezvous.membership import Host
from phalanx._rendezvous.restart_policy import RestartAll
from phalanx._core.rounds import Endpoint
from phalanx._channel.transfer import WINDOW, Incoming, Outgoing, in_batches


@pytest.mark.parametrize(
    ("pattern", "fits", "fits_not"),
    [
        ("ckpt/*", ["ckpt/a", "ckpt/step1/x", "ckpt/.metadata"], ["ckpt", "ckptx/a", "a/ckpt/b"]),
        ("ckpt", ["ckpt", "ckpt/a", "ckpt/a/b"], ["ckpt2", "x/ckpt"]),
        ("./ckpt//", ["ckpt/a"], ["a"]),
        ("*.pt", ["a.pt", "dir.pt/x"], [".pt", ".a.pt", "a/b.pt", "a.pty"]),
        ("**/*.pt", ["a.pt", "a/b.pt", "a/b/c.pt"], ["a.txt", ".a/b.pt"]),
        ("out/**", ["out/a", "out/a/b"], ["out", "outs/a"]),
        ("a/**/z", ["a/z", "a/b/z", "a/b/c/z", "a/z/more"], ["z", "b/z"]),
        ("*", ["a", "a/b", "a/.b"], [".git/config", ".bashrc", "a/.git/hooks/x", ".phalanx-1"]),
        ("**", ["a", "a/b"], [".ssh/key", "a/.git/config", "a/__pycache__/x.pyc"]),
        (".cache/*", [".cache/a"], ["cache/a"]),
        ("v[12]", ["v1", "v2"], ["v3"]),
    ],
)
def test_what_patterns_mean(pattern, fits, fits_not):
    """Shell patterns; a directory means all in it."""
    patterns = Patterns([pattern])
    assert [path for path in fits if not patterns.fits(path)] == []
    assert [path for path in fits_not if patterns.fits(path)] == []


@pytest.mark.parametrize("pattern", ["/etc/passwd", "../x", "a/../../x", "", ".", "a\0b", "//"])
def test_patterns_that_lead_out_are_refused(pattern):
    """Before anything starts, naming it."""
    with pytest.raises(phalanx.ConfigError, match=r"fetch: .*below the working directory"):
        phalanx.launch(print, fetch=[pattern])


def test_a_pattern_that_is_no_list_is_refused():
    """A string would be a list of letters."""
    with pytest.raises(phalanx.ConfigError, match=r"Write fetch=\['ckpt/\*'\]"):
        phalanx.launch(print, fetch="ckpt/*")
    with pytest.raises(phalanx.ConfigError, match="must be a list of patterns"):
        phalanx.launch(print, fetch=[1])
    with pytest.raises(phalanx.ConfigError, match="workspace=None"):
        phalanx.launch(print, hostnames=["no-such-host"], fetch=["a"], workspace=None)


def test_patterns_know_where_to_look_and_which_were_of_no_use():
    """So that nobody walks through all of a directory for one of its own."""
    assert Patterns(["ckpt/*", "ckpt/a/b", "log"]).starts == ["ckpt", "log"]
    assert Patterns(["*.pt", "ckpt/*"]).starts == [""]
    assert Patterns(["a/*", "b/*"]).unused(["a/x"]) == ["b/*"]


@given(st.text(max_size=60) | st.from_regex(r"\A(\.\.|/|a|\.|\0)*\Z"))
def test_no_path_leads_out(path):
    """What is taken to be inside is."""
    if is_inside(path):
        joined = os.path.normpath(os.path.join("/root/of/all", path))
        assert joined.startswith("/root/of/all/")
        assert "\0" not in path
        assert shown(path).isprintable()


def test_paths_that_no_file_system_takes_are_known():
    """Too long, whole or in one name; too deep."""
    assert "has 256 bytes" in why_too_long("a" * 256)
    assert "has 400 bytes" in why_too_long("é" * 200)
    assert "has 4001 bytes" in why_too_long("a/" * 2000 + "a")
    assert not why_too_long("é" * 100)
    assert "is 501 levels deep" in why_too_long("/".join("a" * 501))
    assert not why_too_long("/".join("a" * 500))


# ── whose file counts ─────────────────────────────────────────────────────────

A, B, C = FileVersion(1, "a"), FileVersion(1, "b"), FileVersion(1, "c")


def test_the_lowest_rank_counts_where_both_are_new():
    """And it is known whose differ."""
    choice = choose({}, {}, [("x", {"f": A, "g": A}), ("y", {"f": B, "g": A, "h": C})])
    assert choice.new == {"f": ("x", A), "g": ("x", A), "h": ("y", C)}
    assert choice.differ == {("x", "y"): ["f"]}


def test_what_was_changed_is_newer_than_what_was_not():
    """Whatever the ranks."""
    choice = choose({"f": A}, {"f": {"x", "y"}}, [("x", {"f": A}), ("y", {"f": B})])
    assert choice.new == {"f": ("y", B)}
    assert not choice.differ


def test_what_was_removed_is_not_wanted_any_more():
    """Unless another host has written it again; one that never had it has not removed it."""
    holders = {"f": {"x"}, "g": {"x"}, "h": {"x"}}
    listings = [("x", {"h": A}), ("y", {"g": B}), ("z", {})]
    choice = choose({"f": A, "g": A, "h": A}, holders, listings)
    assert choice.removed == {"f"}
    assert choice.new == {"g": ("y", B)}


# ── the directory ─────────────────────────────────────────────────────────────


def put(tree, path, data, digest=None):
    tree.put(path, data, digest or hashlib.sha256(data).hexdigest())


def test_a_new_file_is_whole_or_not_there(tmp_path):
    """With the user's mode, and without anything left beside it."""
    tree = FileTree(str(tmp_path))
    put(tree, "a/b/c", b"data")
    mask = os.umask(0)
    os.umask(mask)
    mode = stat.S_IMODE((tmp_path / "a/b/c").stat().st_mode)
    assert mode == 0o666 & ~mask
    (tmp_path / "a/b/c").chmod(0o700)
    put(tree, "a/b/c", b"more")
    assert stat.S_IMODE((tmp_path / "a/b/c").stat().st_mode) == 0o600
    with pytest.raises(OSError, match="damaged"):
        put(tree, "a/b/c", b"other", "0" * 64)
    assert (tmp_path / "a/b/c").read_bytes() == b"more"
    assert os.listdir(tmp_path / "a/b") == ["c"]


def test_nothing_is_written_or_read_through_a_link(tmp_path):
    """Neither a directory's nor a file's own; a link in a file's place is replaced."""
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (inside / "link").symlink_to(outside)
    (inside / "file").symlink_to(outside / "secret")
    (inside / "plain").write_text("x")
    (inside / "same").symlink_to("plain")
    os.mkfifo(inside / "pipe")
    tree = FileTree(str(inside))
    with pytest.raises(OSError, match="link is a link"):
        put(tree, "link/new", b"x")
    put(tree, "file", b"new")
    assert (outside / "secret").read_text() == "secret"
    (inside / "file").unlink()
    (inside / "file").symlink_to(outside / "secret")
    assert sorted(found.path for found in tree.files(Patterns(["**"]))) == ["plain", "same"]
    assert not list(tree.files(Patterns(["link/*"])))
    for path in ("file", "link/secret", "../out/secret"):
        with pytest.raises(OSError, match="leads out"):
            tree.open(path)
    with pytest.raises(OSError, match="not a regular file"):
        tree.open("pipe")
    with pytest.raises(OSError):
        tree.remove("link/secret")


def test_more_than_there_is_room_for_is_refused_at_once(tmp_path):
    """Nothing is filled up first."""
    with pytest.raises(OSError, match="No space left"):
        FileTree(str(tmp_path)).create("a", 1 << 60)
    assert not os.listdir(tmp_path)


# ── what a host says ──────────────────────────────────────────────────────────

DIGEST = "0" * 64


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../x", "ckpt/../../x", "other", "", "ckpt/\0", "ckpt/a/.git/config"]
)
def test_a_listing_has_only_what_was_asked_for(path):
    """One such path, and nothing of that host is believed."""
    with pytest.raises(ValueError, match="not requested"):
        ReportedFiles(Patterns(["ckpt/*"])).add([wire.WrittenFile(path, 1, DIGEST)])


def test_a_listing_is_bounded():
    """In number, and sizes are sizes."""
    listing = ReportedFiles(Patterns(["*"]))
    with pytest.raises(ValueError, match="not requested"):
        listing.add([wire.WrittenFile("a", -1, DIGEST)])
    with pytest.raises(ValueError, match="narrower patterns"):
        listing.add([wire.WrittenFile(f"f{i}", 1, DIGEST) for i in range(FILES_LIMIT + 1)])
    unread = ReportedFiles(Patterns(["*"]))
    unread.add([wire.WrittenFile("a", 1), wire.WrittenFile("b", 1, "nonsense")])
    problem = "cannot be read"
    assert (unread.files, unread.unread) == ({}, {"a": problem, "b": problem})


def test_a_path_that_is_too_long_is_the_only_one_left_out(tmp_path):
    """It is no lie, and the others come; however deep those are."""
    deep = "/".join("d" * 400)
    listing = ReportedFiles(Patterns(["**"]))
    names = ["a", deep, "b" * 300, "/".join("c" * 3000)]
    listing.add([wire.WrittenFile(name, 1, DIGEST) for name in names])
    assert [*listing.files] == names[:2]
    assert [*listing.unread] == names[2:]
    assert all("bytes, at most" in reason for reason in listing.unread.values())
    put(FileTree(str(tmp_path)), deep, b"data")
    assert [found.path for found in FileTree(str(tmp_path)).files(Patterns(["**"]))] == [deep]
    with pytest.raises(ValueError, match="too many directories"):
        listing.add([wire.WrittenFile(deep, 1, DIGEST)] * 4000)


class Peer:
    """An agent whose answers are made up by `answer`, which is given each frame that is sent."""

    def __init__(self, answer):
        self.lost = asyncio.Event()
        self.expect = FrameChecker(shipped=True, began=0.0).expect
        self.asked = []
        self._answer = answer
        self.files = None

    async def send(self, frame):
        self.asked.append(frame)
        for said in self._answer(frame):
            asyncio.get_running_loop().call_soon(self.files.hear, said)


def talk(home, answer, work):
    """Run `work` with the files of such a peer; gives what was asked."""

    async def run():
        peer = Peer(answer)
        peer.files = RemoteFiles(peer, "box1", FileTree(str(home)))
        await asyncio.wait_for(work(peer.files), 20)
        return peer.asked

    return asyncio.run(run())


def parts(frame, data, size=wire.PIECE):
    for at in range(frame.offset, frame.offset + frame.size, size):
        some = data[at : min(at + size, frame.offset + frame.size)]
        yield wire.FilePart(number=frame.number, offset=at, data=some)


BIG = os.urandom(5 * wire.PIECE + 17)


def whole(path, data=BIG):
    return wire.WrittenFile(path, len(data), hashlib.sha256(data).hexdigest())


def test_a_file_is_asked_for_in_parts(tmp_path):
    """At most two windows at a time."""
    home = tmp_path / "home"
    home.mkdir()
    asked = talk(home, lambda f: parts(f, BIG), lambda files: files.fetch([whole("a/b")], id))
    assert (home / "a/b").read_bytes() == BIG
    assert all(frame.size <= WINDOW for frame in asked)


def lies():
    other = b"x" * wire.PIECE
    yield "another digest", lambda f: parts(f, bytes(len(BIG)))
    yield "small parts", lambda f: parts(f, BIG, 1000)
    yield "nothing", lambda f: [wire.FilePart(number=f.number, offset=f.offset, data=b"")]
    yield "another offset", lambda f: [wire.FilePart(number=f.number, offset=7, data=other)]
    yield "a negative one", lambda f: [wire.FilePart(number=f.number, offset=-1, data=other)]
    yield "too much", lambda f: [*parts(f, BIG), *([next(parts(f, BIG))] * 99)]
    yield (
        "a problem",
        lambda f: [wire.FilePart(number=f.number, offset=0, data=b"", problem="\x1b[2J")],
    )
    yield (
        "another number",
        lambda f: (
            [wire.FileStored(number=f.number, problems={})]
            + [
                wire.FilePart(number=f.number + 1, offset=0, data=other),
                wire.FilePart(number=f.number, offset=0, data=b"", problem="end"),
            ]
        ),
    )


@pytest.mark.parametrize(
    ("what", "answer"), [*lies()], ids=lambda value: value if str(value) == value else ""
)
def test_a_host_that_sends_something_else_sends_nothing(tmp_path, what, answer):
    """The transfer fails, and home is as it was."""
    (tmp_path / "a").write_text("mine")

    async def fetch(files):
        with pytest.raises(OSError):
            await files.fetch([whole("a")], id)

    talk(tmp_path, answer, fetch)
    assert os.listdir(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text() == "mine"


# ── many small files ──────────────────────────────────────────────────────────

SMALL = [b"one", b"", b"three"]
NAMES = ["a/1", "a/2", "3"]


def all_small():
    return [whole(name, data) for name, data in zip(NAMES, SMALL, strict=True)]


def small(frame, data=b"".join(SMALL), problems=None):
    return [wire.SmallFiles(number=frame.number, data=data, problems=problems or {})]


def test_small_files_come_together(tmp_path):
    """All of them for one question."""
    asked = talk(tmp_path, small, lambda files: files.fetch(all_small(), id))
    assert len(asked) == 1
    assert [(tmp_path / name).read_bytes() for name in NAMES] == SMALL


@pytest.mark.parametrize(
    "answer",
    [
        lambda f: small(f, b"one"),
        lambda f: small(f, bytes(wire.PIECE)),
        lambda f: small(f, problems={1: "lost", 2: "lost"}),
        lambda f: [wire.FilePart(number=f.number, offset=0, data=b"onethree")] + small(f, b""),
    ],
)
def test_small_files_of_another_size_are_none(tmp_path, answer):
    """Where one ends and the next begins is not for the host to say."""

    async def fetch(files):
        with pytest.raises(OSError, match="other bytes"):
            await files.fetch(all_small(), id)

    talk(tmp_path, answer, fetch)
    assert os.listdir(tmp_path) == []


def test_small_files_fail_one_by_one(tmp_path):
    """One that is damaged, one that cannot be sent: the others come, and it is said why."""
    problems = {}

    async def fetch(files):
        problems.update(await files.fetch(all_small(), id))

    talk(tmp_path, lambda f: small(f, b"oNe", {2: "\x1b[2J", 77: "no such file"}), fetch)
    assert problems == {0: "it was changed or damaged on its way", 2: "'\\x1b[2J'"}
    assert sorted(os.listdir(tmp_path)) == ["a"]
    assert os.listdir(tmp_path / "a") == ["2"]


@given(st.lists(st.integers(0, 3 << 16), max_size=60))
def test_batches_fit_into_a_frame(sizes):
    """Every file is in one of them; a large one is alone."""
    files = [wire.WrittenFile(str(i), size) for i, size in enumerate(sizes)]
    batches = list(in_batches(files))
    assert sorted((f for b in batches for f in b), key=lambda f: int(f.path)) == files
    assert all(len(b) == 1 or sum(f.size for f in b) <= wire.PIECE for b in batches)


def test_parts_that_nobody_asked_for_are_not_kept(tmp_path):
    """However many come: what waits to be written down is bounded."""

    async def run():
        async def send(frame):
            pass

        file = wire.WrittenFile("a", 1 << 40, DIGEST)
        incoming = Incoming(FileTree(str(tmp_path)), 1, file, send)
        for i in range(1000):
            incoming.take(wire.FilePart(number=1, offset=i, data=b"x"))
        assert incoming._parts.qsize() == 1

    asyncio.run(run())


def test_a_listing_that_lies_fails_the_host_alone(tmp_path):
    """As an `OSError` that says so, whatever is in the frame."""
    file = wire.WrittenFile("../../x\x1b[2J", 1, DIGEST)

    async def ask(files):
        with pytest.raises(OSError, match=r"not requested") as caught:
            await files.list(Patterns(["ckpt/*"]))
        assert "\x1b" not in str(caught.value)

    talk(
        tmp_path,
        lambda f: [wire.WrittenList(number=f.number, files=(file,), complete=True)] * 3,
        ask,
    )


GIVEN, SECRET = wire.WrittenFile("given", len(BIG)), wire.WrittenFile("secret", 6)


@pytest.mark.parametrize("files", [(SECRET,), (GIVEN,), (SECRET, GIVEN)], ids=str)
def test_only_small_files_that_are_offered_are_given_out(tmp_path, files):
    """A host that asks for others of ours gets nothing, and is told of."""
    expect_nothing(tmp_path, lambda number: wire.FetchSmall(number=number, files=files))


@pytest.mark.parametrize(
    ("path", "offset", "size"),
    [("secret", 0, 6), ("../x", 0, 1), ("given", 0, 1 << 60), ("given", len(BIG), 1)],
)
def test_only_what_is_offered_is_given_out(tmp_path, path, offset, size):
    """Of a large file likewise."""
    ask = lambda number: wire.FetchFile(number=number, path=path, offset=offset, size=size)
    expect_nothing(tmp_path, ask)


def expect_nothing(place, ask):
    """Offer a large file to a host that asks for something else."""
    (place / "given").write_bytes(BIG)
    (place / "secret").write_bytes(b"secret")
    sent = []

    def answer(frame):
        sent.append(frame)
        if isinstance(frame, wire.OfferFile):
            yield ask(frame.number)

    with pytest.raises(OSError, match="more than it was offered"):
        talk(place, answer, lambda files: files.offer([whole("given")], id))
    assert [type(frame) for frame in sent] == [wire.OfferFile]


def test_many_small_files_that_were_asked_for_are_not_chatter():
    """What nobody asked for is."""
    checker = FrameChecker(shipped=True, began=0.0)
    part = wire.FilePart(number=1, offset=0, data=b"small")
    for _ in range(FILES_LIMIT * 2):
        checker.expect(1)
        checker.skip(part, 0.0)
    with pytest.raises(phalanx.WireError, match="the last of them a FilePart"):
        for _ in range(FILES_LIMIT * 2):
            checker.skip(part, 0.0)


def test_what_vanishes_while_it_is_sent_is_said(tmp_path):
    """Shorter than it was, or gone."""

    async def run():
        said = []

        async def send(frame):
            said.append(frame)

        (tmp_path / "short").write_bytes(b"abc")
        outgoing = Outgoing(FileTree(str(tmp_path)), send)
        await outgoing.serve(wire.FetchFile(number=1, path="short", offset=0, size=10))
        await outgoing.serve(wire.FetchFile(number=2, path="none", offset=0, size=10))
        files = [wire.WrittenFile(name, size) for name, size in (("short", 10), ("none", 1))]
        await outgoing.serve_small(
            wire.FetchSmall(number=3, files=(*files, wire.WrittenFile("short", 3)))
        )
        assert said[-1].data == b"abc"
        return [frame.problem for frame in said[:-1]], said[-1].problems

    shorter, gone = problems = ["it became shorter while it was read", "No such file or directory"]
    assert asyncio.run(run()) == (problems, {0: shorter, 1: gone})


def test_time_in_which_files_move_does_not_count_against_the_start():
    """A round that waits for them is begun so much later; another one's word does not count."""
    host = Host(0, "a", 1, (0,))
    settings = p.CoordinatorSettings((host,), start_timeout=10.0, stop_grace=1.0, max_restarts=1)
    coordinator = Coordinator(settings, RestartAll(settings), 0.0)
    coordinator.handle(p.JoinedEvent(0, Endpoint("", 1)), 1.0)
    assert coordinator.deadline == 10.0
    assert coordinator.handle(p.DelayedEvent(1), 8.0) == []
    assert coordinator.deadline == 18.0
    coordinator.handle(p.DelayedEvent(7), 9.0)
    assert coordinator.deadline == 18.0
    coordinator.handle(p.WorkersStartedEvent(0, 1), 11.0)
    coordinator.handle(p.DelayedEvent(1), 12.0)
    assert coordinator.deadline is None


@pytest.mark.parametrize(
    ("sizes", "before", "after"),
    [
        ([5_000_000], "0.0 of 5.0 MB", "5.0 of 5.0 MB"),
        ([10] * 300, "0 of 300 files", "300 of 300 files"),
        ([0, 0], "0 of 2 files", "2 of 2 files"),
        ([2_000_000, 1], "0 of 2 files, 0.0 of 2.0 MB", "2 of 2 files, 2.0 of 2.0 MB"),
    ],
)
def test_progress_counts_what_there_is_much_of(tmp_path, sizes, before, after):
    """Files when they are many; bytes when those are."""

    async def run():
        launcher = phalanx.Launcher(fetch=["*"])
        fetch = FileFetcher(launcher, str(tmp_path), str, id, lambda: None, asyncio.create_task)
        assert fetch.describe() == ""
        remote = RemoteFiles(Peer(lambda _: []), "box1", FileTree(str(tmp_path)))
        fetch._begin(
            {remote: {str(i): FileVersion(n, DIGEST) for i, n in enumerate(sizes)}}, "from"
        )
        assert fetch.describe() == f"fetching files from box1: {before}"
        fetch._count(sum(sizes), files=len(sizes))
        assert fetch.describe() == f"fetching files from box1: {after}"

    asyncio.run(run())
