"""The cloud of the test cluster's autoscaler: each machine that it asks for is a node here.

In a directory of its own, which is on the path of the autoscaler's process.
"""

from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider
from ray.experimental.internal_kv import internal_kv_get_gcs_client


class LocalNodes(FakeMultiNodeProvider):
    """Ray's own stand-in for a cloud, which notices machines that have died, as clouds do."""

    def __init__(self, provider_config, cluster_name):
        super().__init__(provider_config, cluster_name)
        self._gcs_address = internal_kv_get_gcs_client().address

    def non_terminated_nodes(self, tag_filters):
        with self.lock:
            for name, one in list(self._nodes.items()):
                if "node" in one and one["node"].dead_processes():
                    del self._nodes[name]
        return super().non_terminated_nodes(tag_filters)
