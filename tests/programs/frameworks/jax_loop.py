"""A plain loop of JAX: forward and backward are one compiled call, the update another."""

from __future__ import annotations

import tempfile
from pathlib import Path

import jax
import numpy as np
from jax import numpy as jnp
from marks import run, section, steps

STYLE = "api"
TRUE = {
    "steps": 24,
    "batches": 24,
    "forwards": 0,
    "backwards": 24,
    "updates": 24,
    "validations": 2,
    "checkpoints": 1,
}


def loss_of(weights, x, y):
    """Cross entropy of a network of two layers."""
    hidden = jax.nn.relu(x @ weights["in"])
    return -jnp.mean(jax.nn.log_softmax(hidden @ weights["out"])[jnp.arange(len(y)), y])


gradients_of = jax.jit(jax.value_and_grad(loss_of))
held_out_loss = jax.jit(loss_of)


@jax.jit
def update(weights, gradients):
    """One step of plain descent."""
    return jax.tree.map(lambda weight, gradient: weight - 0.1 * gradient, weights, gradients)


def main():
    random = np.random.default_rng(0)
    x, y = random.normal(size=(480, 256)).astype("float32"), random.integers(0, 10, 480)
    sizes = {"in": (256, 512), "out": (512, 10)}
    weights = {name: 0.05 * random.normal(size=size) for name, size in sizes.items()}
    weights = jax.tree.map(lambda values: jnp.asarray(values, "float32"), weights)
    for epoch in range(2):
        rows = np.split(random.permutation(384), 12)
        for chosen in steps(rows):
            # A call comes back before it is done: who wants its time waits inside the section.
            with section("backward"):
                loss, gradients = jax.block_until_ready(gradients_of(weights, x[chosen], y[chosen]))
            with section("optimizer"):
                weights = jax.block_until_ready(update(weights, gradients))
        with section("validate"):
            held_out = held_out_loss(weights, x[384:], y[384:]).item()
        print(f"epoch {epoch}: loss {loss.item():.6f}, held out {held_out:.6f}")
    with tempfile.TemporaryDirectory() as folder, section("checkpoint"):
        np.savez(Path(folder, "weights.npz"), **weights)


if __name__ == "__main__":
    with run():
        main()
