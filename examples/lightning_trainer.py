"""Train on random data with the Lightning Trainer and DDP on two workers.

Install `lightning`, then run `python lightning_trainer.py`.
"""

import os

import phalanx


def train(epochs: int) -> float:
    """Train as in a script for torchrun; return the mean loss of the last epoch."""
    import lightning
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    class Regression(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
            inputs, targets = batch
            loss = torch.nn.functional.mse_loss(self.layer(inputs), targets)
            self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.05)

    torch.manual_seed(0)
    inputs = torch.randn(512, 4)
    data = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True) + 0.3 * torch.randn(512, 1))
    # Lightning detects torchrun's variables and starts no processes of its own. It needs the number
    # of workers per host and the number of hosts.
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        max_epochs=epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Regression(), DataLoader(data, batch_size=32, shuffle=True))
    print(f"rank {trainer.global_rank} of {trainer.world_size} has trained")
    return trainer.callback_metrics["loss"].item()


def main() -> None:
    losses = phalanx.launch(train, {"epochs": 5}, workers_per_host=2)
    print("loss of the last epoch on each rank:", [round(loss, 4) for loss in losses])


if __name__ == "__main__":
    main()
