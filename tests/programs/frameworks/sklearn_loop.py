"""scikit-learn: ``partial_fit`` batch by batch, a score an epoch, and the model written down."""

from __future__ import annotations

import tempfile
from pathlib import Path

import joblib
import numpy as np
from marks import run, section, steps
from sklearn.linear_model import SGDClassifier

STYLE = "api"
TRUE = {
    "steps": 24,
    "batches": 24,
    "forwards": 0,
    "backwards": 0,
    "updates": 24,
    "validations": 2,
    "checkpoints": 1,
}


def main():
    random = np.random.default_rng(0)
    x, y = random.normal(size=(480, 64)), random.integers(0, 10, 480)
    model = SGDClassifier(loss="log_loss", random_state=0)
    for epoch in range(2):
        for rows in steps(np.split(random.permutation(384), 12)):
            with section("optimizer"):
                model.partial_fit(x[rows], y[rows], classes=range(10))
        with section("validate"):
            score = model.score(x[384:], y[384:])
        print(f"epoch {epoch}: {score:.6f} of what was held out, weights {model.coef_.sum():.6f}")
    with tempfile.TemporaryDirectory() as folder, section("checkpoint"):
        joblib.dump(model, Path(folder, "model.joblib"))


if __name__ == "__main__":
    with run():
        main()
