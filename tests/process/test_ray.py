"""What of `ray` needs no cluster: mistakes, and the server that runs on nodes."""

import asyncio
import contextlib
import json
import os
import re
import resource
import socket
import subprocess
import sys

import pytest

from phalanx._schedulers.ray import command_stream
from phalanx._schedulers.ray.command_stream import EXIT, OUT
from phalanx.errors import PhalanxError
from phalanx.runner import get_runner
from phalanx.specs import AppDef, Role
from tests.conftest import wait_until

TOKEN = "a token of these tests"
SERVER = "from phalanx._schedulers.ray.cluster.node_server import main; main()"


def test_ray_is_not_imported_here(tmp_path):
    """Not even to submit, here to nobody."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "phalanx", "run", "-s", "ray", "utils.echo"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "RAY_ADDRESS": "http://127.0.0.1:1"},
    )
    assert "no answer from the Ray dashboard" in done.stderr
    imported = set(re.findall(r"^import time:.*\|\s+(\S+)$", done.stderr, re.MULTILINE))
    assert "phalanx._schedulers.ray.apps.request" in imported
    assert "ray" not in imported


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dashboard_address": "http://127.0.0.1:1"}, "no answer from the Ray dashboard"),
        ({"cluster": "ray://127.0.0.1:10001"}, "is an address of Ray Client"),
        ({"requirements": "nothing.txt"}, "cannot read requirements nothing.txt"),
        ({"cpus": 2.0}, "is for hosts that are lent"),
        ({"working_dir": "/nowhere"}, "working_dir /nowhere is not a directory"),
    ],
)
def test_what_is_wrong_is_one_sentence(options, said, monkeypatch, tmp_path):
    """With what to type."""
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:1")
    monkeypatch.chdir(tmp_path)
    app = AppDef("app", [Role("role", entrypoint="true")])
    with pytest.raises(PhalanxError, match=said) as caught:
        get_runner().run(app, "ray", options)
    assert "\n" not in str(caught.value)


@contextlib.contextmanager
def node_server(directory):
    """One as an actor starts it; gives its process and its port."""
    words = [sys.executable, "-c", SERVER]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, cwd=directory, **pipes) as process:
        told = {"address": "127.0.0.1", "cluster": "head:1", "token": TOKEN}
        told |= {"code": str(directory / "code"), "env": {"GREETING": "hello"}}
        told["directory"] = str(directory)
        process.stdin.write(f"{json.dumps(told)}\n".encode())
        process.stdin.flush()
        yield process, json.loads(process.stdout.readline())["port"]
        process.stdin.close()
        assert process.wait(60) == 0


async def greet(port, command="echo $GREETING"):
    """Run a command there; gives what it printed, and its exit code."""
    stream = await command_stream.connect("127.0.0.1", port, TOKEN)
    with contextlib.closing(stream):
        await stream.send(json.dumps({"argv": ["sh", "-c", command]}).encode())
        printed = b""
        async for record in stream.records():
            if record[:1] == OUT:
                printed += record[1:]
            elif record[:1] == EXIT:
                return printed, json.loads(record[1:])["code"]
    return printed, None


def test_a_project_that_ray_has_unpacked_once_more(tmp_path):
    """It has removed the directory that the server was started in, and made another."""
    project = tmp_path / "project"
    project.mkdir()
    with node_server(project) as (_, port):
        project.rmdir()
        project.mkdir()
        (project / "note").write_text("here\n")
        assert asyncio.run(greet(port, "cat note; pwd")) == (f"here\n{project}\n".encode(), 0)


def test_strangers_at_a_node_keep_nobody_out(tmp_path):
    """However many say nothing, and though they take the last descriptor."""
    with node_server(tmp_path) as (process, port), contextlib.ExitStack() as strangers:
        opened = lambda: len(os.listdir(f"/proc/{process.pid}/fd"))
        fewest = opened()
        for _ in range(200):
            strangers.enter_context(socket.create_connection(("127.0.0.1", port)))
        assert asyncio.run(greet(port)) == (b"hello\n", 0)
        strangers.close()
        _, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        wait_until(lambda: opened() <= fewest)
        usual = resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (fewest, hard))
        with socket.create_connection(("127.0.0.1", port)) as refused:
            # One that is taken is greeted, or waits where nobody can be.
            refused.settimeout(0.3)
            with contextlib.suppress(TimeoutError):
                refused.recv(1)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, usual)
        assert asyncio.run(greet(port)) == (b"hello\n", 0)
