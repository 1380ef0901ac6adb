"""The same program of Keras on JAX: forward, backward and update are one compiled call."""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "jax"

from keras_torch_fit import main

TRUE = {
    "steps": 24,
    "batches": 24,
    "forwards": 0,
    "backwards": 0,
    "updates": 0,
    "validations": 2,
    "checkpoints": 2,
}
UNMARKED = ["batches", "validations"]


if __name__ == "__main__":
    main()
