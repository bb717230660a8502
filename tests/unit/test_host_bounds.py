"""The fewest and the most hosts of a round."""

import pytest

from phalanx._core.host_bounds import check_bounds, host_bounds
from phalanx._rendezvous.protocol import CoordinatorSettings
from phalanx.errors import ConfigError
from phalanx.rendezvous import get_handler


@pytest.mark.parametrize(
    ("count", "fewest", "most", "bounds"),
    [
        (3, None, None, (3, 3)),
        (3, 2, None, (2, 3)),
        (3, None, 5, (3, 5)),
        (3, None, 2, (2, 2)),
        (3, 1, 2, (1, 2)),
        (0, 2, 4, (2, 4)),
    ],
)
def test_all_hosts_that_there_is_room_for_by_default(count, fewest, most, bounds):
    """0 is as good as nothing, where frames and policies carry it."""
    assert host_bounds(count, fewest, most) == bounds
    assert host_bounds(count, fewest or 0, most or 0) == bounds


@pytest.mark.parametrize(
    ("fewest", "most", "said"),
    [
        (0, None, "min_hosts=0: give a number of hosts, at least 1."),
        (None, True, "max_hosts=True: give a number"),
        (1.5, None, "min_hosts=1.5: give a number"),
        (3, 2, "min_hosts=3 is more than max_hosts=2."),
    ],
)
def test_what_is_no_number_of_hosts_is_refused(fewest, most, said):
    """By whoever takes them."""
    with pytest.raises(ConfigError, match=said):
        check_bounds(fewest, most)


def test_a_handler_and_a_coordinator_have_the_same_bounds():
    """A handler knows no hosts: at most the fewest."""
    handler = get_handler("tcp", min_hosts=2)
    assert (handler.min_hosts, handler.max_hosts) == (2, 2)
    settings = CoordinatorSettings((), 1.0, 1.0, min_hosts=2, max_hosts=4)
    assert (settings.least, settings.most) == (2, 4)
