"""The nodes of a Ray cluster, held by this process.

`python -m tests.cluster.ray_nodes DIR NODES CPUS GPUS AUTOSCALED`: the last node has so many GPUs, which
nobody looks for. AUTOSCALED is JSON: the resources of a node that an autoscaler may add, or null for
none.

Commands come on stdin, a line each: `kill PID` kills the node of a process as a loss of power would.
Each is answered by a line of JSON. All nodes end with stdin.
"""

import contextlib
import json
import os
import socket
import sys

from ray.cluster_utils import Cluster
import psutil  # after Ray, which may bring it along itself


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def own(number):
    """What nodes that are on one machine must not share.

    Ports are those that a node would wait for in vain, on a busy machine, if it were to choose them."""
    agent, listen, environment, metrics = free_ports(4)
    return {
        # A node that unpacks a project removes it first: from under another's replicas.
        "runtime_env_dir_name": f"runtime_resources_{number}",
        "metrics_agent_port": agent,
        "dashboard_agent_listen_port": listen,
        "runtime_env_agent_port": environment,
        "metrics_export_port": metrics,
    }


def raylet_of(process):
    """The process of Ray's that began it, or one above it."""
    for one in (process, *process.parents()):
        if raylet := one.environ().get("RAY_RAYLET_PID"):
            return psutil.Process(int(raylet))
    raise LookupError(process)


def kill(raylet):
    """All of a node's processes, at once: nobody says anything."""
    all_of_it = [raylet, *raylet.children(recursive=True)]
    for one in psutil.process_iter():
        # What workers have started may not be below them any more.
        with contextlib.suppress(psutil.Error):
            if one.environ().get("RAY_RAYLET_PID") == str(raylet.pid):
                all_of_it += [one, *one.children(recursive=True)]
    for one in all_of_it:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()


def remains(directory):
    """Processes of nodes that the autoscaler has added."""
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if one.pid != os.getpid() and directory in " ".join(one.cmdline()):
                yield one


def autoscaling(directory, resources):
    """The path of a configuration with one type of node."""
    from ray.autoscaler._private.monitor import BASE_READONLY_CONFIG

    kind = {"node_config": {}, "max_workers": 3, "resources": resources}
    config = {
        **BASE_READONLY_CONFIG,
        "max_workers": 3,
        "idle_timeout_minutes": 0.5,
        "provider": {
            "type": "external",
            "module": "local_nodes.LocalNodes",
            "launch_multiple": True,
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
        },
    }
    config["available_node_types"] |= {"autoscaled": kind}
    path = f"{directory}.autoscaling"
    with open(path, "w") as file:
        json.dump(config, file)
    os.environ |= {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
    os.environ["PYTHONPATH"] = os.path.join(os.path.dirname(__file__), "ray_autoscaler")
    return path


def main():
    directory, (count, cpus, gpus) = sys.argv[1], map(int, sys.argv[2:5])
    scaled = json.loads(sys.argv[5])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    (dashboard,) = free_ports(1)
    common = {
        "num_cpus": cpus,
        "object_store_memory": 80 << 20,
        # No test asks anything of it: it prints what drivers do not want.
        "include_log_monitor": False,
        "no_monitor": scaled is None,
    }
    if scaled is not None:
        common["autoscaling_config"] = autoscaling(directory, scaled)
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            **common,
            **own(0),
            "include_dashboard": True,
            "dashboard_port": dashboard,
            "temp_dir": directory,
        },
    )
    try:
        for number in range(1, count):
            own_gpus = gpus if number == count - 1 else 0
            cluster.add_node(wait=False, num_gpus=own_gpus, **common, **own(number))
        cluster.wait_for_nodes(240)
        print(json.dumps({"dashboard": cluster.webui_url, "head": cluster.address}), file=answers)
        for line in sys.stdin:
            match line.split():
                case ["kill", pid]:
                    kill(raylet_of(psutil.Process(int(pid))))
            print(json.dumps({}), file=answers)
    finally:
        cluster.shutdown()
        for one in remains(directory):
            kill(one)


if __name__ == "__main__":
    main()
