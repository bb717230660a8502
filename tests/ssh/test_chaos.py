"""A minute of chaos for each way of leading hosts; `make chaos` has more of it."""

import pytest

from phalanx._chaos.faults import Kind
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
    """Nothing hangs, and nothing is left. The seed's first minute has every kind of fault, with time
    to recover from each.
    """
    report = chaos.run(own_cluster, tmp_path, seed=119565, minutes=1)
    made = {fault["kind"] for fault in report["faults"] if not fault["problem"]}
    assert made == {kind.value for kind in Kind}, report["faults"]


@pytest.mark.skipif(etcd_box.why_not() is not None, reason=str(etcd_box.why_not()))
@pytest.mark.timeout(600)
def test_a_training_by_etcd_survives_chaos_with_the_right_sum(own_cluster, tmp_path):
    """Likewise, where nobody leads but by etcd, and etcd breaks as well."""
    report = etcd_chaos.run(own_cluster, tmp_path, seed=7, minutes=1)
    kinds = {kind for _, kind, _ in report.faults}
    assert any(kind.endswith(("-member", "-etcd")) for kind in kinds), kinds
    assert len(report.faults) >= 5
