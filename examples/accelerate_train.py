"""Train with Accelerate on two workers: what `notebook_launcher` or `accelerate launch` would run.

Install `accelerate`, then run `python accelerate_train.py`.
"""

import phalanx


def train(steps: int) -> float:
    """Train as in a script for `accelerate launch`; return the last loss."""
    import torch
    from accelerate import Accelerator
    from accelerate.utils import set_seed
    from torch.utils.data import DataLoader, TensorDataset

    set_seed(0)
    # It uses the existing ranks and process group. Leave cpu=True out where there are GPUs.
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    inputs = torch.randn(512, 4)
    data = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, batches = accelerator.prepare(model, optimizer, DataLoader(data, 32))
    loss = torch.tensor(0.0)
    for _ in range(steps // len(batches)):
        for x, y in batches:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.mse_loss(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
    print(f"rank {accelerator.process_index} of {accelerator.num_processes} has trained")
    return accelerator.gather(loss.detach()).mean().item()


def main() -> None:
    losses = phalanx.launch(train, {"steps": 40}, workers_per_host=2)
    print("last loss on each rank:", [round(loss, 4) for loss in losses])


if __name__ == "__main__":
    main()
