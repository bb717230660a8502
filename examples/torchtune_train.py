"""Train a tiny Llama 3 of torchtune's, sharded by FSDP over two workers.

Nothing is downloaded. Install `torchtune` and `torchao<0.16`, then run `python torchtune_train.py`.
"""

import phalanx


def train(steps: int) -> float:
    """Train as in a recipe for `tune run`; return the last loss, averaged over all ranks."""
    import torch
    import torch.distributed as dist
    from torchtune import training, utils
    from torchtune.models.llama3 import llama3
    from torchtune.modules.loss import CEWithChunkedOutputLoss

    # The process group is there already.
    size, rank = utils.get_world_size_and_rank()
    training.set_seed(0)
    words, length = 32, 16
    model = llama3(
        vocab_size=words,
        num_layers=2,
        num_heads=2,
        num_kv_heads=2,
        embed_dim=32,
        max_seq_len=length,
    )
    training.shard_model(model, [training.get_shard_conditions], cpu_offload=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    chunked = CEWithChunkedOutputLoss()
    model.set_num_output_chunks(chunked.num_output_chunks)
    print(f"rank {rank} of {size} trains")
    loss = torch.tensor(0.0)
    for _ in range(steps):
        starts = torch.randint(words, (32, 1))
        tokens = (starts + torch.arange(length + 1)) % words
        loss = chunked(model(tokens[:, :-1]), tokens[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    mean = loss.detach() / size
    dist.all_reduce(mean)
    return mean.item()


def main() -> None:
    losses = phalanx.launch(train, {"steps": 60}, workers_per_host=2)
    print("last loss on each rank:", [round(loss, 4) for loss in losses])


if __name__ == "__main__":
    main()
