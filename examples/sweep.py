"""Search for a learning rate: several trainings at once, without a cluster of a framework's own.

Each training is a launch of its own with two workers. One that fails does not end the others.
Run `python sweep.py`; with `hostnames=[...]`, each training has a host to itself.
"""

import phalanx


def train(rate: float, steps: int = 40) -> float:
    """Train data-parallel; return the last loss, averaged over all ranks."""
    import torch
    import torch.distributed as dist

    torch.manual_seed(dist.get_rank())
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        x = torch.randn(32, 4)
        loss = torch.nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    if not mean.isfinite():
        raise ArithmeticError(f"the loss is {mean.item()} with a rate of {rate}")
    return mean.item() / dist.get_world_size()


def main() -> None:
    rates = [0.001, 0.1, 1e9]
    losses: dict[float, float] = {}
    launcher = phalanx.Launcher(workers_per_host=2)
    try:
        for result in launcher.map(train, [{"rate": rate} for rate in rates], ordered=False):
            losses[rates[result.item_index]] = result.rank(0)
    except phalanx.MapFailed as failed:
        print("failed:", len(failed.failures))
    best = min(losses, key=lambda rate: losses[rate])
    print(f"best rate: {best}")


if __name__ == "__main__":
    main()
