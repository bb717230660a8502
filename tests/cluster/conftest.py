"""Schedulers for these tests."""

import pytest

from tests.cluster import slurm as box


def pytest_collection_modifyitems(items):
    """Skip the tests of a scheduler that cannot be had, with the reason."""
    if reason := box.why_not():
        for item in items:
            if item.path.name == "test_slurm.py":
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def slurm():
    cluster = box.Slurm(3)
    yield cluster
    cluster.close()
