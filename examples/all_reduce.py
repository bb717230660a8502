"""All-reduce on four workers: a function that uses torch gets a process group."""

import phalanx


def total() -> float:
    import torch
    import torch.distributed as dist

    value = torch.ones(1) * dist.get_rank()
    dist.all_reduce(value)
    return value.item()


if __name__ == "__main__":
    print(phalanx.launch(total, workers_per_host=4).rank(0))
