"""Two minutes of chaos; `make chaos` has more of it."""

import pytest

from tests.cluster import etcd as etcd_box
from tests.ssh import chaos, etcd_chaos
from tests.ssh.cluster import Cluster


@pytest.fixture
def own_cluster():
    """Three hosts that nobody else uses."""
    made = Cluster(3)
    yield made
    made.close()


@pytest.mark.timeout(600)
def test_a_training_survives_chaos_with_the_right_sum(own_cluster, tmp_path):
    """Nothing hangs, and nothing is left."""
    report = chaos.run(own_cluster, tmp_path, seed=4, minutes=0.75)
    assert sum(not fault["problem"] for fault in report["faults"]) >= 5


@pytest.mark.skipif(etcd_box.why_not() is not None, reason=str(etcd_box.why_not()))
@pytest.mark.timeout(600)
def test_a_training_by_etcd_survives_chaos_with_the_right_sum(own_cluster, tmp_path):
    """Likewise, where nobody leads but by etcd, and etcd breaks as well."""
    report = etcd_chaos.run(own_cluster, tmp_path, seed=7, minutes=0.5)
    kinds = {kind for _, kind, _ in report.faults}
    assert any(kind.endswith(("-member", "-etcd")) for kind in kinds), kinds
    assert len(report.faults) >= 5
