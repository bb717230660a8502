"""Frames survive the streams that carry them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx._channel.ledger import KEPT, FrameLedger
from phalanx.errors import WireError


class Peer:
    """One side: what it was told to say, and what it heard, in order."""

    def __init__(self):
        self.ledger = FrameLedger()
        self.heard = []
        self.way = []
        """What is on its way to the other: frames, and confirmations."""

    def say(self, frame):
        self.ledger.keep(frame)
        self.way.append(frame)

    def take(self, item):
        if isinstance(item, int):
            self.ledger.confirm(item)
        else:
            self.heard.append(item)
            if self.ledger.receive(len(item)):
                self.way.append(self.ledger.tell())

    def confirm(self):
        if self.ledger.is_owing:
            self.way.append(self.ledger.tell())


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["say", "say large", "arrive", "confirm", "break"]), st.sampled_from([0, 1])
    ),
    max_size=120,
)


@given(STEPS)
def test_nothing_is_lost_or_doubled(steps):
    """Whatever is said, wherever the stream breaks: each hears what the other said, in order."""
    peers = [Peer(), Peer()]
    said = [[], []]
    for number, (what, who) in enumerate(steps):
        mine, other = peers[who], peers[1 - who]
        match what:
            case "say" | "say large":
                frame = b"%d" % number + bytes(100_000 if what == "say large" else 0)
                said[who].append(frame)
                mine.say(frame)
            case "arrive" if mine.way:
                other.take(mine.way.pop(0))
            case "confirm":
                mine.confirm()
            case "break":
                counts = [peer.ledger.received for peer in peers]
                for peer, there in zip(peers, reversed(counts), strict=True):
                    peer.ledger.confirm(there)
                    peer.way = list(peer.ledger.kept)
    for _ in range(2):  # the second for what the first has confirmed
        for mine, other in (peers, reversed(peers)):
            while mine.way:
                other.take(mine.way.pop(0))
            mine.confirm()
    for mine, other in (peers, reversed(peers)):
        for item in mine.way:
            other.take(item)
    assert [peer.heard for peer in reversed(peers)] == said
    assert all(peer.ledger.is_confirmed for peer in peers)


def test_what_was_confirmed_is_not_kept():
    """And what is kept is bounded: whoever has more to say is told to wait."""
    ledger = FrameLedger()
    while not ledger.is_full:
        ledger.keep(bytes(1 << 20))
    assert ledger.sent == KEPT // (1 << 20) + 1
    ledger.confirm(1)
    assert not ledger.is_full
    ledger.confirm(2)
    assert len(ledger.kept) == ledger.sent - 2


@pytest.mark.parametrize("count", [0, 3])
def test_a_confirmation_that_cannot_be_is_refused(count):
    """Of frames that were never sent, or fewer than before."""
    ledger = FrameLedger()
    ledger.keep(b"a")
    ledger.keep(b"b")
    ledger.confirm(1)
    with pytest.raises(WireError, match=f"a confirmation of {count} frames"):
        ledger.confirm(count)


def test_what_has_come_is_confirmed_before_the_peer_has_to_wait():
    """Many small frames, or a few large ones."""
    small, large = FrameLedger(), FrameLedger()
    assert [small.receive(10) for _ in range(64)] == [False] * 63 + [True]
    assert large.receive(1 << 20)
    assert large.tell() == 1
    assert not large.is_owing
