"""Train with DDP on four workers, save a checkpoint after every epoch, and resume from it.

`python ddp_checkpoint.py DIRECTORY` trains three more epochs each time. Without a directory it uses
a temporary one and trains twice.
"""

import os
import sys
import tempfile
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import phalanx


def save(state: dict[str, Any], path: str) -> None:
    """Save atomically: if the job is killed, `path` is still a complete checkpoint."""
    with open(path + ".new", "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".new", path)


def train(directory: str, epochs: int) -> tuple[float, float]:
    """Train for some epochs; return the mean loss of the last one and the sum of all weights."""
    rank = dist.get_rank()
    inputs = torch.randn(1024, 8, generator=torch.Generator().manual_seed(0))
    dataset = TensorDataset(inputs, inputs.square().sum(dim=1, keepdim=True).sqrt())
    sampler: DistributedSampler[Any] = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)

    network = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    path, done = os.path.join(directory, "checkpoint.pt"), 0
    if os.path.exists(path):
        state = torch.load(path)
        network.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["epochs"]

    mean = torch.zeros(())
    for epoch in range(done, done + epochs):
        sampler.set_epoch(epoch)
        losses = []
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        mean = torch.stack(losses).mean() / dist.get_world_size()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"epoch {epoch + 1}: loss {mean:.4f}")
            state = {"model": network.state_dict(), "optimizer": optimizer.state_dict()}
            save(state | {"epochs": epoch + 1}, path)
    return mean.item(), sum(p.double().sum().item() for p in network.parameters())


def run(directory: str) -> None:
    results = list(phalanx.launch(train, args=(directory, 3), workers_per_host=4))
    loss, _ = results[0]
    print(f"final loss {loss:.4f}; the ranks agree: {all(r == results[0] for r in results)}")


def main() -> None:
    if len(sys.argv) > 1:
        os.makedirs(sys.argv[1], exist_ok=True)
        run(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as directory:
            run(directory)
            print("resuming from the checkpoint:")
            run(directory)


if __name__ == "__main__":
    main()
