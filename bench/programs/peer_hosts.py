"""`peer_hosts.py SSH_CONFIG HOST...`: an all_reduce on these hosts with torchrunx."""

import sys

import torchrunx


def reduce() -> None:
    import torch
    import torch.distributed as dist

    value = torch.ones(1)
    dist.all_reduce(value)
    assert value.item() == dist.get_world_size()


if __name__ == "__main__":
    torchrunx.Launcher(
        hostnames=sys.argv[2:], workers_per_host=1, backend="gloo", ssh_config_file=sys.argv[1]
    ).run(reduce)
