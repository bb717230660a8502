"""The nodes of a Ray cluster, held by this process: `python -m tests.cluster.ray_nodes DIR NODES CPUS`.

Commands come on stdin, a line each: `kill N` kills a node as a loss of power would, `add RESOURCES…`
adds one for each. Each is answered by a line of JSON. All nodes end with stdin.
"""

import contextlib
import json
import os
import signal
import socket
import sys

from ray.cluster_utils import Cluster


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def ports():
    """Those that a node would wait for in vain, on a busy machine, if it were to choose them."""
    agent, listen, environment, metrics = free_ports(4)
    return {
        "metrics_agent_port": agent,
        "dashboard_agent_listen_port": listen,
        "runtime_env_agent_port": environment,
        "metrics_export_port": metrics,
    }


def kill(node):
    """All of a node's processes, at once: nobody says anything."""
    import psutil  # which Ray may bring along itself

    raylet = node.all_processes["raylet"][0].process.pid
    own = [
        psutil.Process(info.process.pid) for each in node.all_processes.values() for info in each
    ]
    for one in psutil.process_iter():
        # What workers have started may not be below them any more.
        with contextlib.suppress(psutil.Error):
            if one.environ().get("RAY_RAYLET_PID") == str(raylet):
                own.append(one)
    below = [child for one in own for child in one.children(recursive=True)]
    for one in [*own, *below]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one.pid, signal.SIGKILL)


def main():
    directory, count, cpus = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    (dashboard,) = free_ports(1)
    common = {
        "num_cpus": cpus,
        "object_store_memory": 80 << 20,
        # Processes that no test asks anything of: they print what drivers do not want, and ask a
        # cloud for machines.
        "include_log_monitor": False,
        "no_monitor": True,
    }
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            **common,
            **ports(),
            "include_dashboard": True,
            "dashboard_port": dashboard,
            "temp_dir": directory,
        },
    )
    nodes = [cluster.head_node]
    try:
        for _ in range(count - 1):
            nodes.append(cluster.add_node(wait=False, **common, **ports()))
        cluster.wait_for_nodes(240)
        print(json.dumps({"dashboard": cluster.webui_url, "head": cluster.address}), file=answers)
        for line in sys.stdin:
            match line.split():
                case ["kill", number]:
                    kill(nodes[int(number)])
                case ["add", *resources]:
                    for one in resources:
                        more = {**common, "resources": json.loads(one)}
                        nodes.append(cluster.add_node(wait=False, **more, **ports()))
            print(json.dumps({"nodes": len(nodes)}), file=answers)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
