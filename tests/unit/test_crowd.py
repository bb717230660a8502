"""Who stays when more come than there is room for."""

from hypothesis import given
from hypothesis import strategies as st

from phalanx._rendezvous.tcp.connections.crowd import Crowd, Standing

STRANGER, PROVEN, OWN = Standing


def test_there_is_room():
    """Nobody has to go."""
    crowd = Crowd(3, 3)
    assert [crowd.enter(n, "a", STRANGER) for n in range(3)] == [None] * 3
    assert len(crowd) == 3


def test_of_one_origin_the_oldest_goes_that_has_come_no_further():
    """Whoever has said something stays longer."""
    crowd = Crowd(3, 3)
    for n in range(3):
        crowd.enter(n, "a", STRANGER)
    crowd.advance(0)
    assert [crowd.enter(n, "a", STRANGER) for n in (3, 4)] == [1, 2]
    crowd.advance(3)
    crowd.advance(4)
    assert crowd.enter(5, "a", STRANGER) == 0


def test_those_that_are_served_are_kept():
    """Where connections last, the next of the same origin is the one that goes."""
    crowd = Crowd(2, 2, keeps=True)
    for n in range(2):
        crowd.enter(n, "a", STRANGER)
        crowd.advance(n)
    assert crowd.enter(2, "a", STRANGER) == 2
    assert 2 not in crowd
    assert crowd.enter(3, "b", STRANGER) == 0  # but not at the cost of another origin


def test_a_flood_competes_with_itself():
    """Another origin gets in, and stays in."""
    crowd = Crowd(10, 10)
    for n in range(100):
        crowd.enter(n, "flood", STRANGER)
    assert crowd.enter("host", "elsewhere", STRANGER) == 90
    for n in range(100, 200):
        assert crowd.enter(n, "flood", STRANGER) != "host"
    assert "host" in crowd


def test_a_higher_standing_has_a_lower_one_go():
    """And is not driven out by it."""
    crowd = Crowd(4, 2)
    assert [crowd.enter(n, n, STRANGER) for n in range(2)] == [None] * 2
    assert crowd.enter(2, 2, STRANGER) == 0  # no more strangers than that
    assert [crowd.enter(n, "own", OWN) for n in (10, 11)] == [None] * 2
    assert crowd.enter(12, "proven", PROVEN) == 1
    assert crowd.enter(13, "own", OWN) == 2
    assert crowd.enter(14, "own", OWN) == 12
    assert crowd.enter(3, 3, STRANGER) == 3
    assert crowd.enter(15, "proven", PROVEN) == 15


def test_leaving_makes_room():
    """Also for one that has left already."""
    crowd = Crowd(1, 1)
    crowd.enter(0, "a", STRANGER)
    crowd.leave(0)
    crowd.leave(0)
    crowd.advance(0)
    assert crowd.enter(1, "a", STRANGER) is None


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(Standing), st.booleans()), max_size=60),
    st.integers(1, 8),
    st.integers(1, 8),
    st.booleans(),
)
def test_the_bounds_hold_whoever_comes(visits, room, strangers, keeps):
    """And one that is in is never driven out by one of a lower standing."""
    crowd = Crowd(room, strangers, keeps=keeps)
    standings = {}
    for number, (origin, standing, further) in enumerate(visits):
        victim = crowd.enter(number, origin, standing)
        if victim != number:
            standings[number] = standing
        if victim is not None and victim != number:
            assert standings.pop(victim) <= standing
        if further:
            crowd.advance(number)
        assert {n for n in standings if n in crowd} == set(standings)
        assert len(crowd) == len(standings) <= room
        assert sum(s is STRANGER for s in standings.values()) <= strangers
