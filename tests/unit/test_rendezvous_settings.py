"""The settings of a rendezvous: torch's names, mistakes, and what has no meaning here."""

import pytest

from phalanx.errors import ConfigError
from phalanx._rendezvous.settings import Settings, make


def test_texts_and_torchs_names():
    """As --rdzv-conf gives them."""
    assert make({}) == Settings()
    made = make({"join_timeout": "7", "is_host": "true", "node_rank": "3", "local_addr": "h"})
    assert (made.join_timeout, made.is_host, made.node_rank, made.local_addr) == (7, True, 3, "h")
    assert make({"keep_alive_interval": 2, "keep_alive_max_attempt": "4"}).host_timeout == 8
    assert make({"keep_alive_interval": 2}).host_timeout == 6
    made = make({"timeout": 5, "rank": "1", "store_type": "tcp"})
    assert (made.join_timeout, made.node_rank) == (5, 1)
    assert make({"rank": 2, "node_rank": "2"}).node_rank == 2
    assert make({"host_timeout": 8}).heartbeat == 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"join_timout": 1}, "Did you mean 'join_timeout'"),
        ({"join_timeout": "soon"}, "must be a number"),
        ({"join_timeout": 0}, "number of seconds"),
        ({"host_timeout": -1}, "number of seconds"),
        ({"last_call_timeout": "nan"}, "must be a number"),
        ({"is_host": "perhaps"}, "1 or 0"),
        ({"store_type": "file"}, "only tcp"),
        ({"stop_grace": 3}, "unknown rendezvous setting 'stop_grace'"),
        ({"rank": 1, "node_rank": 2}, "rank=1 and node_rank=2 differ"),
        ({"rank": "first"}, "rank='first': must be a number"),
    ],
)
def test_mistakes(given, said):
    """Each with what to write."""
    with pytest.raises(ConfigError, match=said):
        make(given)


def test_timeout_means_what_it_means_to_torchrun(caplog):
    """Of the listed hosts' join; for c10d nothing, and that is said."""
    assert make({"timeout": 5}, "static").join_timeout == 5
    assert make({}, "static").join_timeout == 900
    assert not caplog.records
    assert make({"timeout": 5}, "c10d") == Settings()
    assert "ignoring timeout: it has no effect with c10d. Use join_timeout" in caplog.text


def test_unknown_names_on_a_command_line_are_a_warning(caplog):
    """With the nearest, as torchrun's plugins have settings of their own."""
    assert make({"join_timout": 5, "host_timeout": 3}, lenient=True).host_timeout == 3
    assert "ignoring join_timout: unknown rendezvous setting. Did you mean 'join_timeout'" in (
        caplog.text
    )


def test_what_has_no_meaning_here_is_said(caplog):
    """It is passed over, but not in silence."""
    assert make({"read_timeout": 60, "heartbeat_timeout": 5}) == Settings()
    assert "read_timeout" in caplog.text
    assert "heartbeat_timeout" in caplog.text
