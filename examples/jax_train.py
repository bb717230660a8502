"""Train on random data with JAX on two workers, each with its own part of the batch.

Install `jax`, then run `python jax_train.py`.
"""

import phalanx


def train(steps: int) -> float:
    """Train data-parallel; return the last loss, averaged over all processes."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import multihost_utils

    jax.distributed.initialize()  # rank, size and coordinator are in the worker's variables
    key = jax.random.key(jax.process_index())
    weights = jnp.zeros(4)
    loss = jnp.array(0.0)

    def error(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.mean((x @ weights - x.sum(axis=1)) ** 2)

    step = jax.jit(jax.value_and_grad(error))
    for _ in range(steps):
        key, use = jax.random.split(key)
        mine = step(weights, jax.random.normal(use, (64, 4)))
        losses, gradients = multihost_utils.process_allgather(mine)
        loss, weights = losses.mean(), weights - 0.2 * gradients.mean(axis=0)
    print(f"process {jax.process_index()} of {jax.process_count()} has trained")
    return float(loss)


def main() -> None:
    losses = phalanx.launch(train, {"steps": 30}, workers_per_host=2)
    print("last loss on each rank:", [round(loss, 4) for loss in losses])


if __name__ == "__main__":
    main()
