"""Launch a `main()` that was written for torchrun. It also runs with torchrun itself."""

import torch
import torch.distributed as dist

import phalanx


def main() -> float:
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    for _ in range(20):
        inputs = torch.randn(32, 4)
        loss = (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()
    return loss.item()


if __name__ == "__main__":
    losses = phalanx.launch(main, workers_per_host=2)
    print("losses:", [round(loss, 2) for loss in losses])
