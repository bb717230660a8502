"""Where a host of a rendezvous over TCP stands: transitions, and what they keep."""

import asyncio

import pytest

from phalanx._core.rounds import Ended, Endpoint, Member, Outcome, Round
from phalanx._rendezvous.protocol import ProgressEvent, Phase
from phalanx._rendezvous.tcp.state import TcpState
from phalanx._wire.rendezvous_frames import JoinRequest

START = Endpoint("h0", 29400)
CONTACTS = {1: Endpoint("h1", 1), 2: Endpoint("h2", 2)}


class Leader:
    """One that has nothing to tell."""

    def take_progress(self):
        return []


def round_of(number, *agents, restarts=0):
    members = tuple(Member(agent, f"h{agent}", rank, 1) for rank, agent in enumerate(agents))
    return Round(number, members, Endpoint("h1", 5), restarts, torch=False)


def request(port=7):
    return JoinRequest(
        version="", run_id="", agent=1, key="", hostname="h1", workers=1, node_rank=None,
        contact=CONTACTS[1], port=port, torch=None, bounds=(1, 2),
    )  # fmt: skip


@pytest.fixture
def state():
    return TcpState(1, START)


def test_a_host_that_follows_knows_where_the_leader_is_reached(state):
    """By the round's contacts, once there are any; else where the rendezvous began."""
    link = object()
    state.follow(link, 2, START)
    assert (state.link, state.leader_agent, state.leader_contact) == (link, 2, START)
    state.round_formed(2, CONTACTS, ProgressEvent("round", 0.0))
    assert state.leader_contact == CONTACTS[2]
    state.lose_leader(object())
    assert state.link is link  # it was another's
    state.lose_leader(link)
    assert (state.link, state.leader_contact, state.leader_agent) == (None, None, 2)
    assert [event.name for event in state.take_progress()] == ["round"]
    assert state.take_progress() == []


def test_a_host_either_follows_or_leads(state):
    """Never both."""
    state.lead(Leader())
    with pytest.raises(AssertionError):
        state.follow(object(), 2, START)
    other = TcpState(1, START)
    other.follow(object(), 2, START)
    with pytest.raises(AssertionError):
        other.lead(Leader())


def test_a_leader_abdicates_only_before_its_first_round(state):
    """What has begun goes on where it is."""
    leader = Leader()
    state.lead(leader)
    assert state.abdicate() is leader
    assert state.abdicate() is None
    state.lead(leader)
    state.begin(round_of(1, 1))
    assert state.abdicate() is None
    assert state.leader is leader


def test_a_round_from_its_begin_until_it_is_clear(state):
    """A round of others is known, and nothing of it is here."""
    assert state.stop() is None
    assert not state.begin(round_of(1, 2))
    assert (state.phase, state.is_clear, state.round.number) == (Phase.GATHERING, True, 1)
    assert state.begin(round_of(2, 1, 2))
    state.workers_started()
    state.worker_ended(2, Outcome(0, Ended.RETURNED, 0.0))
    assert (state.phase, state.is_clear, state.is_running) == (Phase.RUNNING, False, True)
    assert list(state.outcomes) == [0]
    assert state.stop() == 2
    assert state.phase is Phase.STOPPING
    state.clear(None)
    assert (state.is_clear, state.is_running, state.stop()) == (True, False, None)
    state.begin(round_of(3, 1))
    assert not state.outcomes


def test_the_join_request_says_what_was_last(state):
    """The round, its restarts, whether anything is left of it, and the port for the next store."""
    assert state.request is None
    state.join(request())
    assert asyncio.run(state.wait_request()) == request()
    state.begin(round_of(3, 1, 2, restarts=2))
    said = state.request
    assert (said.last_round, said.restarts, said.clear, said.port) == (3, 2, False, 7)
    state.clear(8)
    assert (state.request.clear, state.request.port) == (True, 8)


@pytest.mark.parametrize("end", ["cancel", "finish"])
def test_after_the_end_nothing_begins(state, end):
    """It is said once; nobody leads, and no round begins."""
    state.begin(round_of(1, 1))
    assert getattr(state, end)()
    assert not getattr(state, end)()
    assert state.is_over
    assert not state.begin(round_of(2, 1))
    assert state.round.number == 1
    with pytest.raises(AssertionError):
        state.lead(Leader())


def test_one_that_is_cancelled_decides_no_more(state):
    """The others go on without it."""
    state.lead(Leader())
    assert state.cancel()
    assert state.leader is None
    assert state.is_cancelled


def test_others_begin_while_workers_of_an_earlier_round_are_here(state):
    """It is theirs that are stopped and cleared; how they end is not of the others' round."""
    assert state.begin(round_of(2, 1, 2))
    assert not state.begin(round_of(3, 2))
    assert (state.own_round, state.stop()) == (2, 2)
    state.worker_ended(2, Outcome(0, Ended.KILLED, 0.0, signal=15))
    assert not state.outcomes
    state.clear(None)
    assert (state.own_round, state.stop()) == (None, None)
