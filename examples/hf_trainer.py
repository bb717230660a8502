"""Train a tiny Llama with the Hugging Face Trainer on two workers.

Nothing is downloaded. Install `transformers` and `accelerate`, then run `python hf_trainer.py`.
"""

import tempfile

import phalanx


def train(directory: str, steps: int) -> float:
    """Train as in a script for torchrun; return the mean loss over all steps."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

    set_seed(0)
    words = 32
    starts = torch.randint(words, (256, 1))
    data = [{"input_ids": row, "labels": row} for row in (starts + torch.arange(16)) % words]
    config = LlamaConfig(
        vocab_size=words,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
    )
    # The Trainer uses the existing process group and ranks.
    arguments = TrainingArguments(
        output_dir=directory,
        max_steps=steps,
        per_device_train_batch_size=16,
        learning_rate=0.01,
        use_cpu=True,
        ddp_find_unused_parameters=False,
        logging_steps=10,
        disable_tqdm=True,
        save_strategy="no",
        report_to="none",
    )
    trainer = Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=data)
    print(f"rank {arguments.process_index} of {arguments.world_size} trains")
    return trainer.train().training_loss


def main() -> None:
    # Created here, not in the workers, so that it is removed even if they are interrupted.
    with tempfile.TemporaryDirectory() as directory:
        arguments = {"directory": directory, "steps": 30}
        losses = phalanx.launch(train, arguments, workers_per_host=2)
    print("training loss on each rank:", [round(loss, 4) for loss in losses])


if __name__ == "__main__":
    main()
