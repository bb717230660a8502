"""The counting of silence."""

from phalanx._core.silence import Silence


def test_silence_adds_up_until_something_is_heard():
    """What counts is the time that was waited for."""
    silence = Silence(7)
    assert [silence.pass_time(0.5, 7) for _ in range(3)] == [0.5, 1.0, 1.5]
    assert silence.pass_time(0.5, 8) == 0.0
    assert silence.pass_time(0.25, 8) == silence.seconds == 0.25


def test_silence_that_is_expected_does_not_count():
    """And what was heard meanwhile is not news afterwards."""
    silence = Silence()
    assert silence.pass_time(1.0, 0) == 1.0
    assert silence.pass_time(1.0, 5, expected=False) == 0.0
    assert silence.pass_time(1.0, 5) == 1.0
