"""Schedulers for these tests."""

import pytest

from tests.cluster import slurm as box


def pytest_collection_modifyitems(items):
    """Skip the tests of a scheduler that cannot be had, with the reason."""
    if reason := box.why_not():
        for item in items:
            if "slurm" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def slurm():
    cluster = box.Slurm(4)
    yield cluster
    cluster.close()


@pytest.fixture
def in_slurm(slurm, monkeypatch):
    """The commands of that Slurm are this process's."""
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, slurm.environ[name])
    return slurm
