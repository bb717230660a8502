"""JSON of others, nested so deeply that Python's own reader gives up in a way of its own."""

import os

import pytest

from phalanx._core.environment import OURS, users
from phalanx._core.json_text import parse_json
from phalanx._rendezvous.etcd import client
from phalanx._schedulers.kubernetes.api.cluster import refusal
from phalanx._schedulers.ray import job_log
from phalanx._schedulers.replicas import error_text
from phalanx._schedulers.replicas.error_text import ReplicaError
from phalanx._schedulers.replicas.lifecycle_record import LifecycleRecord
from phalanx._system.small_files import load_json
from phalanx.errors import ConfigError
from phalanx.events import Event
from phalanx.specs import from_json

DEEP = '{"message": ' + "[" * 100_000


@pytest.mark.parametrize("text", [DEEP, DEEP.encode(), "[" * 100_000, "{", "", "\ud800"])
def test_what_is_no_json_is_a_value_error(text):
    """However it is none."""
    with pytest.raises(ValueError, match=r"\w"):
        parse_json(text)
    assert parse_json('{"a": [1]}') == {"a": [1]}


def test_nobody_stumbles_over_it():
    """It counts as what cannot be read: an app does not end because of what one replica wrote."""
    assert error_text.reported(DEEP) == ReplicaError()
    assert users({OURS: DEEP, "A": "1"}) == {"A": "1"}
    assert job_log.last_status(f"{job_log.MARK}{DEEP}\n") is None
    assert client._Refused(DEEP).code == 0
    assert "the server" in str(refusal(500, DEEP, "get", "pods", "the server"))
    for parse in (LifecycleRecord.from_text, Event.deserialize, from_json):
        with pytest.raises((ValueError, ConfigError)):
            parse(DEEP)


@pytest.mark.parametrize("kind", ["pipe", "directory", "large", "missing"])
def test_an_error_file_that_is_none_is_not_waited_for(kind, tmp_path):
    """It is the program that has left it there."""
    path = tmp_path / "error.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "large":
        path.write_text('{"message": "here"}')
        os.truncate(path, 1 << 29)
    assert error_text._reported(str(path)) == ReplicaError()
    with pytest.raises((OSError, ValueError)):
        load_json(path)
