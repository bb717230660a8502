"""Train with Lightning Fabric and DDP on two workers.

Install `lightning`, then run `python lightning_fabric.py`.
"""

import os

import phalanx


def train(steps: int) -> float:
    """Train as in a script for `fabric run`; return the last loss, averaged over all ranks."""
    import torch
    from lightning.fabric import Fabric

    # Fabric detects torchrun's variables and starts no processes of its own: `launch` only sets up.
    fabric = Fabric(
        accelerator="cpu",
        strategy="ddp",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
    )
    fabric.launch()
    fabric.seed_everything(fabric.global_rank, verbose=False)
    model = torch.nn.Linear(4, 1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loss = torch.tensor(0.0)
    for _ in range(steps):
        x = torch.randn(32, 4)
        loss = torch.nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        fabric.backward(loss)
        optimizer.step()
    print(f"rank {fabric.global_rank} of {fabric.world_size} has trained")
    mean = fabric.all_reduce(loss.detach(), reduce_op="mean")
    return torch.as_tensor(mean).item()


def main() -> None:
    losses = phalanx.launch(train, {"steps": 50}, workers_per_host=2)
    print("last loss on each rank:", [round(loss, 4) for loss in losses])


if __name__ == "__main__":
    main()
