"""Ranks in short."""

import pytest

from phalanx._core.ranks import ranges
from phalanx._core.stacks import in_short
from phalanx._logs.lines import prefix


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([], ""), ([3], "3"), ([5, 0, 2, 1], "0–2, 5"), ([0, 2, 3, 9], "0, 2–3, 9")],
)
def test_neighbours_are_put_together(ranks, text):
    """In whatever order they come."""
    assert ranges(iter(ranks)) == text
    assert ranges(ranks, dash="-") == text.replace("–", "-")


def test_ranks_are_named_in_the_same_way_in_reports_and_before_lines():
    """One, or several."""
    assert (in_short(iter([3])), in_short([5, 0, 1])) == ("rank 3", "ranks 0-1, 5")
    assert (prefix([3], None), prefix([1, 0], "a")) == ("[rank 3]", "[a ranks 0–1]")
