"""XGBoost: each boosting round, one ``update`` with all the data, is a step."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import xgboost
from marks import run, section, steps

STYLE = "api"
TRUE = {
    "steps": 12,
    "batches": 12,
    "forwards": 0,
    "backwards": 0,
    "updates": 12,
    "validations": 3,
    "checkpoints": 1,
}


def main():
    random = np.random.default_rng(0)
    x, y = random.normal(size=(480, 32)), random.integers(0, 2, 480)
    training = xgboost.DMatrix(x[:384], y[:384])
    held_out = xgboost.DMatrix(x[384:], y[384:])
    given = {"objective": "binary:logistic", "nthread": 1, "seed": 0}
    booster = xgboost.Booster(given, [training, held_out])
    for number in steps(range(12)):
        with section("optimizer"):
            booster.update(training, number)
        if number % 4 == 3:
            with section("validate"):
                said = booster.eval_set([(training, "train"), (held_out, "held out")], number)
            print(said)
    with tempfile.TemporaryDirectory() as folder, section("checkpoint"):
        booster.save_model(Path(folder, "model.ubj"))


if __name__ == "__main__":
    with run():
        main()
