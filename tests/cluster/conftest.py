"""Schedulers for these tests."""

import pytest

from tests.cluster import slurm as box

if reason := box.why_not():
    collect_ignore_glob = ["test_slurm.py"]

    def pytest_report_header():
        return f"tests/cluster/test_slurm.py is skipped: {reason}"


@pytest.fixture(scope="session")
def slurm():
    cluster = box.Slurm(3)
    yield cluster
    cluster.close()
