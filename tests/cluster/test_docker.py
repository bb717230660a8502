"""The engine that the other tests stand on."""

import pytest

from tests.cluster.docker import IMAGE, Engine, why_not
from tests.conftest import is_alive

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


def test_the_image_has_python_and_containers_find_each_other_by_name(docker):
    name = "test-names"
    docker.docker("network", "create", name)
    try:
        there = ("--network", name, "--name", f"{name}-other")
        docker.docker("run", "--detach", *there, IMAGE, "sleep", "infinity")
        code = f"import socket; print(socket.gethostbyname('{name}-other'))"
        printed = docker.docker("run", "--rm", "--network", name, IMAGE, "python3", "-c", code)
        assert printed.startswith("10.199.")
    finally:
        docker.docker("rm", "-f", f"{name}-other")
        docker.docker("network", "rm", name)


def test_an_engine_knows_what_it_knew_when_it_is_back_and_leaves_nothing():
    engine = Engine()
    try:
        engine.docker("run", "--detach", "--init", "--name", "one", IMAGE, "sleep", "infinity")
        engine.stop(kill=True)
        engine.start()
        assert engine.docker("ps", "--all", "--format", "{{.Names}}").split() == ["one"]
        engine.clear()
        assert not any(engine.left().values())
        first = int((engine.place / "init.pid").read_text())
    finally:
        engine.close()
    assert not is_alive(first)
    assert not engine.place.exists()


def test_those_who_give_the_same_name_share_an_engine_until_the_last_is_gone(tmp_path):
    one = Engine(f"test-{tmp_path.name}")
    other = Engine(f"test-{tmp_path.name}")
    one.close()
    assert other.docker("image", "ls", "--quiet")
    other.close()
    assert not other.place.exists()
