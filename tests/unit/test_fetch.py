"""Files from other hosts: which are meant, whose count, and what a host that lies can do: nothing."""

import asyncio
import hashlib
import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

import phalanx
from phalanx import wire
from phalanx.filetree import FileTree
from phalanx.launcher.remote_files import FILES_LIMIT, Listing, RemoteFiles
from phalanx.launcher.versions import Version, choose
from phalanx.launcher.vetting import Vetting
from phalanx.patterns import Patterns, is_inside, shown
from phalanx.rendezvous import protocol as p
from phalanx.rendezvous.coordinator import Coordinator
from phalanx.rendezvous.membership import Host
from phalanx.rounds import Endpoint
from phalanx.transfer import WINDOW, Incoming, Outgoing


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
    with pytest.raises(phalanx.ConfigError, match="not a list of patterns"):
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


def test_paths_that_no_file_system_takes_are_not_inside():
    """Too long, too deep."""
    assert not is_inside("a" * 256)
    assert not is_inside("/".join("a" * 100))
    assert not is_inside("é" * 200)
    assert is_inside("é" * 100)


# ── whose file counts ─────────────────────────────────────────────────────────

A, B, C = Version(1, "a"), Version(1, "b"), Version(1, "c")


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
    file = tree.create(path, len(data))
    try:
        file.write(data)
        file.commit(digest or hashlib.sha256(data).hexdigest())
    finally:
        file.close()


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
    with pytest.raises(ValueError, match="not asked for"):
        Listing(Patterns(["ckpt/*"])).add([wire.WrittenFile(path, 1, DIGEST)])


def test_a_listing_is_bounded():
    """In number, and sizes are sizes."""
    listing = Listing(Patterns(["*"]))
    with pytest.raises(ValueError, match="not asked for"):
        listing.add([wire.WrittenFile("a", -1, DIGEST)])
    with pytest.raises(ValueError, match="name fewer"):
        listing.add([wire.WrittenFile(f"f{i}", 1, DIGEST) for i in range(FILES_LIMIT + 1)])
    unread = Listing(Patterns(["*"]))
    unread.add([wire.WrittenFile("a", 1), wire.WrittenFile("b", 1, "nonsense")])
    assert (unread.files, unread.unread) == ({}, ["a", "b"])


class Peer:
    """An agent whose answers are made up by `answer`, which is given each frame that is sent."""

    def __init__(self, answer):
        self.lost = asyncio.Event()
        self.vetting = Vetting(shipped=True, began=0.0)
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
        yield wire.Part(number=frame.number, offset=at, data=some)


BIG = os.urandom(5 * wire.PIECE + 17)
WHOLE = Version(len(BIG), hashlib.sha256(BIG).hexdigest())


def test_a_file_is_asked_for_in_parts(tmp_path):
    """At most two windows at a time."""
    home = tmp_path / "home"
    home.mkdir()
    asked = talk(home, lambda f: parts(f, BIG), lambda files: files.fetch("a/b", WHOLE, id))
    assert (home / "a/b").read_bytes() == BIG
    assert all(frame.size <= WINDOW for frame in asked)


def lies():
    other = b"x" * wire.PIECE
    yield "another digest", lambda f: parts(f, bytes(len(BIG)))
    yield "small parts", lambda f: parts(f, BIG, 1000)
    yield "nothing", lambda f: [wire.Part(number=f.number, offset=f.offset, data=b"")]
    yield "another offset", lambda f: [wire.Part(number=f.number, offset=7, data=other)]
    yield "a negative one", lambda f: [wire.Part(number=f.number, offset=-1, data=other)]
    yield "too much", lambda f: [*parts(f, BIG), *([next(parts(f, BIG))] * 99)]
    yield "a problem", lambda f: [wire.Part(number=f.number, offset=0, data=b"", problem="\x1b[2J")]
    yield (
        "another number",
        lambda f: (
            [wire.Kept(number=f.number)]
            + [
                wire.Part(number=f.number + 1, offset=0, data=other),
                wire.Part(number=f.number, offset=0, data=b"", problem="end"),
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
            await files.fetch("a", WHOLE, id)

    talk(tmp_path, answer, fetch)
    assert os.listdir(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text() == "mine"


def test_parts_that_nobody_asked_for_are_not_kept(tmp_path):
    """However many come: what waits to be written down is bounded."""

    async def run():
        async def send(frame):
            pass

        incoming = Incoming(FileTree(str(tmp_path)), 1, "a", 1 << 40, DIGEST, send)
        for i in range(1000):
            incoming.take(wire.Part(number=1, offset=i, data=b"x"))
        assert incoming._parts.qsize() == 1

    asyncio.run(run())


def test_a_listing_that_lies_fails_the_host_alone(tmp_path):
    """As an `OSError` that says so, whatever is in the frame."""
    file = wire.WrittenFile("../../x\x1b[2J", 1, DIGEST)

    async def ask(files):
        with pytest.raises(OSError, match=r"not asked for") as caught:
            await files.list(Patterns(["ckpt/*"]))
        assert "\x1b" not in str(caught.value)

    talk(tmp_path, lambda f: [wire.Written(number=f.number, files=(file,), complete=True)] * 3, ask)


def test_only_what_is_offered_is_given_out(tmp_path):
    """A host that asks for another file of ours gets nothing."""
    (tmp_path / "given").write_bytes(BIG)
    (tmp_path / "secret").write_bytes(b"secret")
    sent = []

    def answer(frame):
        sent.append(frame)
        if isinstance(frame, wire.Offer):
            for path, size in (("secret", 6), ("../x", 1), ("given", 1 << 60), ("given", 5)):
                yield wire.Fetch(number=frame.number, path=path, offset=0, size=size)
        elif isinstance(frame, wire.Part):
            yield wire.Kept(number=frame.number)

    talk(tmp_path, answer, lambda files: files.offer("given", WHOLE, id))
    (part,) = [frame for frame in sent if isinstance(frame, wire.Part)]
    assert part.data == BIG[:5]


def test_many_small_files_that_were_asked_for_are_not_chatter():
    """What nobody asked for is."""
    vetting = Vetting(shipped=True, began=0.0)
    part = wire.Part(number=1, offset=0, data=b"small")
    for _ in range(FILES_LIMIT * 2):
        vetting.expect(1)
        vetting.skip(part, 0.0)
    with pytest.raises(phalanx.WireError, match="the last of them a Part"):
        for _ in range(FILES_LIMIT * 2):
            vetting.skip(part, 0.0)


def test_what_vanishes_while_it_is_sent_is_said(tmp_path):
    """Shorter than it was, or gone."""

    async def run():
        said = []

        async def send(frame):
            said.append(frame)

        (tmp_path / "short").write_bytes(b"abc")
        outgoing = Outgoing(FileTree(str(tmp_path)), send)
        await outgoing.serve(wire.Fetch(number=1, path="short", offset=0, size=10))
        await outgoing.serve(wire.Fetch(number=2, path="none", offset=0, size=10))
        return [frame.problem for frame in said]

    assert asyncio.run(run()) == [
        "it became shorter while it was read",
        "No such file or directory",
    ]


def test_time_in_which_files_move_does_not_count_against_the_start():
    """A round that waits for them is begun so much later; another one's word does not count."""
    host = Host(0, "a", 1, (0,))
    policy = p.Policy((host,), start_timeout=10.0, stop_grace=1.0, max_restarts=1)
    coordinator = Coordinator(policy, 0.0)
    coordinator.handle(p.Joined(0, Endpoint("", 1)), 1.0)
    assert coordinator.deadline == 10.0
    assert coordinator.handle(p.Delayed(1), 8.0) == []
    assert coordinator.deadline == 18.0
    coordinator.handle(p.Delayed(7), 9.0)
    assert coordinator.deadline == 18.0
    coordinator.handle(p.Running(0, 1), 11.0)
    coordinator.handle(p.Delayed(1), 12.0)
    assert coordinator.deadline is None
