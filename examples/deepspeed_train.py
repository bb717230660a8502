"""Train with DeepSpeed's engine and ZeRO on two workers.

Install `deepspeed` (`DS_BUILD_OPS=0 pip install deepspeed`), then run `python deepspeed_train.py`.
"""

import phalanx


def train(steps: int) -> float:
    """Train as in a script for the `deepspeed` command; return the last loss."""
    import deepspeed
    import torch

    # On CPUs, gloo is enough: without this, the first use compiles an extension for some minutes.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    # It uses the existing process group: there is no launcher, hostfile or MPI to set up.
    deepspeed.init_distributed()
    torch.manual_seed(0)
    config = {
        "train_micro_batch_size_per_gpu": 32,
        "optimizer": {"type": "Adam", "params": {"lr": 0.05, "torch_adam": True}},
        "zero_optimization": {"stage": 1},
    }
    model = torch.nn.Linear(4, 1)
    engine, *_ = deepspeed.initialize(model=model, config=config)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        x = torch.randn(32, 4, device=engine.device)
        loss = torch.nn.functional.mse_loss(engine(x), x.sum(dim=1, keepdim=True))
        engine.backward(loss)
        engine.step()
    print(f"rank {engine.global_rank} of {engine.world_size} has trained")
    return loss.item()


def main() -> None:
    losses = phalanx.launch(train, {"steps": 40}, workers_per_host=2)
    print("last loss on each rank:", [round(loss, 4) for loss in losses])


if __name__ == "__main__":
    main()
