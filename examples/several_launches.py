"""Launch several functions in one script: prepare data on 1 worker, train on 4, evaluate on 2.

The result of one launch is an argument of the next. Run `python several_launches.py`.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import phalanx

Data = tuple[torch.Tensor, torch.Tensor]
State = dict[str, torch.Tensor]


def network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))


def prepare(points: int) -> tuple[Data, Data]:
    """Return labelled points, inside a circle or not, as a training set and a test set."""
    torch.manual_seed(0)
    inputs = 2 * torch.rand(points, 2) - 1
    labels = (inputs.square().sum(dim=1) < 0.6).long()
    held_out = points // 4
    return (inputs[held_out:], labels[held_out:]), (inputs[:held_out], labels[:held_out])


def share(data: Data) -> Data:
    """Return this rank's part of the data."""
    inputs, labels = data
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    return inputs[mine], labels[mine]


def train(data: Data, steps: int) -> State | None:
    """Train on all ranks; only rank 0 returns the weights, which are the same on every rank."""
    inputs, labels = share(data)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for step in range(steps):
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}")
    return model.module.state_dict() if dist.get_rank() == 0 else None


def evaluate(state: State, data: Data) -> float:
    """Return the accuracy over all ranks."""
    inputs, labels = share(data)
    model = network()
    model.load_state_dict(state)
    with torch.no_grad():
        right = (model(inputs).argmax(dim=1) == labels).sum()
    counts = torch.stack([right, torch.tensor(len(labels))])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def main() -> None:
    training, held_out = phalanx.launch(prepare, {"points": 4000}, workers_per_host=1).rank(0)
    state = phalanx.launch(train, {"data": training, "steps": 200}, workers_per_host=4).rank(0)
    result = phalanx.launch(evaluate, {"state": state, "data": held_out}, workers_per_host=2)
    print("accuracy on both ranks:", [round(accuracy, 3) for accuracy in result])


if __name__ == "__main__":
    main()
