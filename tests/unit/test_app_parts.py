"""Small pure parts of apps: docstrings, handles, options, errors in logs, GPUs, requests."""

from dataclasses import dataclass, field
from typing import Optional

import pytest

from phalanx._core.last_words import without_torchs
from phalanx.errors import ConfigError
from phalanx._registry import recorded_app
from phalanx._runner import docstrings, handles
from phalanx._runner.component import Component
from phalanx._runner.config import ConfigValue, variable_name
from phalanx._schedulers.replicas import error_text
from phalanx._schedulers.supervised import gpus
from phalanx._schedulers.options import make, option, options, parse
from phalanx.schedulers import make_app_id
from phalanx._schedulers.replicas.request import AppRequest, ReplicaRequest, RoleRequest
from phalanx.specs import AppDef, AppState, ReplicaStatus, Role


def test_docstrings_in_googles_style():
    """Text, arguments over several lines, other sections left out."""
    text, arguments = docstrings.parse(
        """Do it.

        At length.

        Args:
            a: the first
            b (int): the second,
                which goes on: here
            *rest: the rest

        Returns:
            nothing
        """
    )
    assert text == "Do it.\n\nAt length."
    assert arguments == {
        "a": "the first",
        "b": "the second, which goes on: here",
        "rest": "the rest",
    }
    assert docstrings.parse(None) == ("", {})


def test_handles():
    """There and back; places below them."""
    handle = handles.parse("slurm://team/app-1")
    assert (str(handle), handle.session) == ("slurm://team/app-1", "team")
    assert str(handles.parse("slurm:///app-1")) == "slurm://phalanx/app-1"
    for wrong in ("app-1", "slurm://app", "slurm://s/a/b", "://s/a", ""):
        with pytest.raises(ConfigError, match="invalid handle"):
            handles.parse(wrong)
    place = handles.parse_log_selector("slurm://s/app/role/0,2-4")
    assert (place.app, place.role, place.replicas) == ("slurm://s/app", "role", (0, 2, 3, 4))
    assert handles.parse_log_selector("app") == handles.LogSelector("app")
    assert handles.parse_log_selector("app/role").role == "role"
    for wrong in ("app/role/x", "a/b/c/d", "app//0", "app/role/1-"):
        with pytest.raises(ConfigError):
            handles.parse_log_selector(wrong)


def test_ids_that_lead_out_of_the_registry_are_nobodys():
    """They come from the command line."""
    for wrong in ("", ".", "..", "../x", "a/b"):
        assert recorded_app.get(wrong) is None


@dataclass
class Settings:
    queue: str = option(help="q")
    size: int = option(3, help="s")
    tags: list[str] = option([], help="t")
    env: dict[str, str] = option({}, help="e")
    fast: Optional[bool] = option(None, help="f")
    plain: str = "x"
    made: list[int] = field(default_factory=lambda: [1])


def test_options_come_from_a_dataclass():
    """Texts and values alike; required ones are named, unknown ones have a suggestion."""
    found = {o.name: (o.type, o.required, o.default) for o in options(Settings)}
    assert found["queue"] == ("str", True, None)
    assert found["tags"] == ("list of str", False, [])
    assert found["made"] == ("list of int", False, [1])
    given = parse("queue=q,size=4,tags=a,b;env=A:1,B:2,fast=yes")
    made = make("mine", Settings, given)
    assert (made.size, made.tags, made.env) == (4, ["a", "b"], {"A": "1", "B": "2"})
    assert (made.fast, made.plain, made.made) == (True, "x", [1])
    assert make("mine", Settings, {"queue": '"a,b"'}).queue == "a,b"
    assert make("mine", Settings, {"queue": "q", "tags": ["x"]}).tags == ["x"]
    for wrong, said in (
        ({}, "mine: missing required option 'queue'"),
        ({"queue": "q", "sise": "1"}, "no option 'sise'. Did you mean 'size'"),
        ({"queue": "q", "size": "x"}, "mine: option 'size': 'x' is not a whole number"),
        ({"queue": "q", "env": {"A": []}}, "mine: option 'env'"),
    ):
        with pytest.raises(ConfigError, match=said):
            make("mine", Settings, wrong)
    with pytest.raises(ConfigError, match="given twice"):
        parse("a=1,a=2")
    assert variable_name("utils.echo", "num_replicas") == "PHALANX_UTILS_ECHO_NUM_REPLICAS"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", ""),
        ("one\ntwo\n\n", "two"),
        ("Traceback (most recent call last):\n  File x\n    y\nKeyError: 7\n", "KeyError: 7"),
        (
            "Traceback (most recent call last):\n  a\nA: handled\nfine\n"
            "Traceback (most recent call last):\n  b\nB: fatal\nafterwards\n",
            "B: fatal",
        ),
        (
            "[default0]:[rank0]: Traceback (most recent call last):\n"
            "[default0]:[rank0]:   File x\n[default0]:[rank0]: ValueError: mine\n"
            "Traceback (most recent call last):\n  b\n"
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n===\n",
            "ValueError: mine",
        ),
        ("Traceback (most recent call last):\n  cut off", "cut off"),
    ],
)
def test_the_error_in_what_was_printed(text, error):
    """Of the last traceback; of torchrun's report, the worker's."""
    assert error_text.in_text(text) == error


def replica(number, count):
    return ReplicaRequest("r", number, ("x",), {}, "/", "localhost", count, {"stdout": "/l/o"})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ""),
        ("step 3\n", ""),
        ("[W1119 04:00:00.1 init.cpp:1] Warning: Failed to initialize NumPy\n", ""),
        ("a.py:3: UserWarning: no error\n  warnings.warn('no error')\n", ""),
        (
            "step 3\n[1]:[W1119 socket.cpp:2] cannot\nterminate called after …\n  what():  bad\nx\n",
            "terminate called after …",
        ),
        ("Fatal Python error: Segmentation fault\n", "Fatal Python error: Segmentation fault"),
    ],
)
def test_what_a_signal_killed_has_not_ended_by_its_last_line(text, words):
    """Unless that is about an error."""
    assert error_text.in_text(text, killed=True) == words


@pytest.mark.parametrize(
    ("error", "how"),
    [
        ("", "exited with code 1"),
        ("ValueError: x", "exited with code 1: ValueError: x"),
        ("rank 3 on nu2 was killed by SIGKILL", "failed: rank 3 on nu2 was killed by SIGKILL"),
    ],
)
def test_a_replicas_end_says_once_how_it_ended(error, how):
    """That of the worker, where it has told that."""
    status = ReplicaStatus(0, "job", AppState.FAILED, exit_code=1, error=error)
    assert status.describe() == how


def test_gpus_are_given_to_one_each():
    """In order; what the user has set stays."""
    given = gpus.distribute([replica(0, 2), replica(1, 0), replica(2, 1)], ["0", "3", "5"])
    assert [r.env for r in given] == [
        {"CUDA_VISIBLE_DEVICES": "0,3"},
        {},
        {"CUDA_VISIBLE_DEVICES": "5"},
    ]
    assert gpus.visible({}, 2) == ["0", "1"]
    assert gpus.visible({"CUDA_VISIBLE_DEVICES": "4, GPU-x"}, 2) == ["4", "GPU-x"]


def test_requests_there_and_back():
    """As the supervisor reads them."""
    role = RoleRequest("r", 1, "ROLE", (replica(0, 1), replica(1, 0)))
    request = AppRequest("id", "name", "local_cwd", "s", "a:b", 1.0, (role,), {"a": 1})
    assert AppRequest.from_dict(request.to_dict()) == request


@pytest.mark.parametrize("name", ["train", "Ünï cödé", "a/b", "../../x", "-", "x" * 300, "A_b.c"])
def test_ids_fit_everywhere(name):
    """A file name, a label, a part of a handle."""
    made = make_app_id(name)
    assert len(made) < 60
    assert all(c.isascii() and (c.isalnum() or c in "-_") for c in made)
    assert made[0].isalnum()
    assert make_app_id(name) != made


def test_components_called_from_python():
    """With values by name; positional parameters before `*args` keep their places."""

    def both(first: str, second: int = 2, *rest: str, last: bool = False) -> AppDef:
        text = repr((first, second, rest, last))
        return AppDef("a", [Role("r", entrypoint="x", args=[text])])

    component = Component("both", both)
    build = lambda *args: component.build(*args).roles[0].args[0]
    assert build(["--first", "a", "b", "c"]) == "('a', 2, ('b', 'c'), False)"
    assert build({"first": "a", "rest": ["b"], "last": True}) == "('a', 2, ('b',), True)"
    assert build(["--first", "a"], {"second": ConfigValue("7", "file")}) == "('a', 7, (), False)"
    with pytest.raises(ConfigError, match="^file: both: second: 'x' is not a whole number"):
        component.build(["--first", "a"], {"second": ConfigValue("x", "file")})
    with pytest.raises(ConfigError, match="has no option 'frist'. Did you mean --first"):
        component.build({"frist": "a"})


def test_torchs_own_warnings_are_no_last_lines():
    """It warns of a client's hostname in apps that succeed as well."""
    torchs = "[W1119 04:00:00.1 socket.cpp:1] [c10d] The hostname of the client socket cannot be"
    assert without_torchs([torchs, f"[0]: {torchs}", "loss 3", "[W]eird"]) == ["loss 3", "[W]eird"]
