"""Torch's flight recorder: what it dumps is read, and the ranks that are missing are named."""

import json

import pytest

from phalanx._agent.stacks.flight_records import parse
from phalanx._core.collectives import LastCollective, describe_missing


def entry(number, name="nccl:all_reduce", *, group=("0", "default_pg"), **facts):
    known = {"collective_seq_id": number, "profiling_name": name, "process_group": list(group)}
    state = {"state": "scheduled", "retired": False, "is_p2p": False, "input_sizes": [[2]]}
    return known | state | facts


def dump(*entries, groups=None):
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}} | (groups or {})
    return json.dumps({"version": "2.10", "entries": entries, "pg_config": groups}).encode()


def last(number, *, done, name="gloo:all_reduce", ranks=(0, 1, 2, 3)):
    return (LastCollective("default_pg", number, name, done, ranks),)


def test_the_last_collective_of_each_group_is_read():
    """Whether it is done: by its state, as NCCL has it, or because it was retired, as gloo has."""
    text = dump(
        entry(1, retired=True),
        entry(2, "nccl:broadcast", state="completed"),
        entry(7, "nccl:send 0->1", is_p2p=True),
        entry(1, "nccl:reduce_scatter", group=("3", "mesh_dp"), state="started"),
        groups={"3": {"name": "3", "desc": "mesh_dp", "ranks": "[0, 2]"}},
    )
    assert parse(text) == [
        LastCollective("default_pg", 2, "nccl:broadcast", True, (0, 1, 2, 3)),
        LastCollective("mesh_dp", 1, "nccl:reduce_scatter", False, (0, 2)),
    ]


def test_the_ranks_of_gloo_s_default_group_have_no_name():
    """As torch 2.13 dumps it."""
    text = json.dumps(
        {
            "entries": [entry(4, "gloo:all_reduce")],
            "pg_config": {"": {"desc": "", "name": "", "ranks": "[0, 1]"}},
        }
    )
    assert parse(text.encode())[0].ranks == (0, 1)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b'{"entries": 3}',
        b'{"entries": [{}]}',
        b'{"entries": [{"process_group": 1}]}',
        b'{"entries": [{"process_group": ["0", "d"], "collective_seq_id": "x"}]}',
        b'{"entries": [], "pg_config": []}',
        b"[" * 100_000,
    ],
)
def test_nonsense_is_nothing(text):
    """A worker has written it."""
    assert parse(text) == []


def test_the_rank_that_has_not_entered_a_collective_is_named():
    """With the one that it has entered last."""
    known = {0: last(12, done=False), 1: last(12, done=False), 2: last(12, done=False)}
    known[3] = last(11, done=True, name="gloo:broadcast")
    assert describe_missing(known) == [
        "ranks 0-2 have entered gloo:all_reduce (collective 12 of default_pg), rank 3 has not; the "
        "last one that it has entered is gloo:broadcast (collective 11 of default_pg)."
    ]


def test_ranks_of_which_nothing_is_known_are_said_to_be_so():
    """They did not answer, or have no recorder."""
    assert describe_missing({0: last(5, done=False), 1: last(5, done=False), 2: ()}) == [
        "ranks 0-1 have entered gloo:all_reduce (collective 5 of default_pg), ranks 2-3 are not "
        "known to have."
    ]


def test_ranks_in_different_collectives_are_told_apart():
    """The same number, and not the same operation."""
    ranks = (0, 1)
    known = {0: last(5, done=False, ranks=ranks)}
    known[1] = last(5, done=False, name="gloo:broadcast", ranks=ranks)
    assert describe_missing(known) == [
        "ranks are in different collectives, as number 5: rank 0 in gloo:all_reduce, rank 1 in "
        "gloo:broadcast."
    ]


def test_where_nobody_waits_nothing_is_said():
    """Ranks may be at different collectives for a moment."""
    assert describe_missing({}) == []
    assert describe_missing({0: last(5, done=True), 1: last(4, done=True)}) == []
