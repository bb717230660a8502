"""Hosts for these tests; after each, nothing of ours may be left on any of them."""

import os
from pathlib import Path

import pytest

import phalanx
from tests.conftest import wait_until
from tests.ssh.cluster import Cluster, why_not


def pytest_collection_modifyitems(items):
    """Skip what is in this directory, with the reason, where hosts cannot be made."""
    if reason := why_not():
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def all_hosts():
    cluster = Cluster(4)
    yield cluster
    cluster.close()


@pytest.fixture
def cluster(all_hosts):
    """Four hosts, as they were when they were started; those that a test has ended start anew."""
    for host in all_hosts.hosts:
        if host.pid is None:
            host.reboot()
    yield all_hosts
    for host in all_hosts.hosts:
        if host.pid is None:
            continue
        host.mend()
        message = lambda host=host: f"{host.name}: {host.processes()} is left"
        wait_until(lambda host=host: not host.processes(), message=message)
        assert not host.files()


@pytest.fixture
def launcher(cluster):
    """Make a launcher for the first so many hosts."""

    def make(count=2, workers=1, **options):
        options.setdefault("hostnames", cluster.names[:count])
        return phalanx.Launcher(
            workers_per_host=workers, ssh_config_file=str(cluster.ssh_config), **options
        )

    return make


@pytest.fixture
def remote_script(cluster, script):
    """Run a script as a user would, with a launcher for two hosts under the name `launcher`."""

    def head(**options):
        fields = {
            "hostnames": cluster.names[:2],
            "workers_per_host": 1,
            "ssh_config_file": str(cluster.ssh_config),
            **options,
        }
        return f"import os, sys, time, phalanx\nlauncher = phalanx.Launcher(**{fields!r})\n"

    def start(code, *args, **options):
        return script.start(head(**options) + code, *args)

    def run(code, *args, env=None, timeout=60, **options):
        return script(
            head(**options) + code, *args, env={**os.environ, **(env or {})}, timeout=timeout
        )

    run.start = start
    return run
