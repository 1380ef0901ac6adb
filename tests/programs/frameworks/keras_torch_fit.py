"""Keras on torch: ``fit`` with a validation an epoch, ``save`` and ``save_weights``."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
from marks import section

TRUE = {
    "steps": 24,
    "batches": 24,
    "forwards": 24,
    "backwards": 24,
    "updates": 24,
    "validations": 2,
    "checkpoints": 2,
}
UNMARKED = ["batches", "forwards", "backwards", "updates", "validations"]


def main():
    keras.utils.set_random_seed(0)
    x, y = np.random.rand(480, 256), np.random.randint(0, 10, 480)
    layers = [keras.layers.Dense(512, activation="relu"), keras.layers.Dense(10)]
    model = keras.Sequential(layers)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    done = model.fit(x, y, epochs=2, batch_size=32, validation_split=0.2, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        with section("checkpoint"):
            model.save(Path(folder, "model.keras"))
        with section("checkpoint"):
            model.save_weights(Path(folder, "model.weights.h5"))
    print(f"loss {done.history['loss'][-1]:.6f}, held out {done.history['val_loss'][-1]:.6f}")


if __name__ == "__main__":
    main()
