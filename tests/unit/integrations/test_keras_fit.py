"""What ``fit`` opens is closed again, whatever ends it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from runs import LIMIT_S, Ended, environment
from tiers import require_packages

from otel_mlperf import names
from otel_mlperf.integrations.keras_fit import KerasFit

STOPPED = """
import os
os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np
import otel_mlperf as om

class Stops(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 3:
            raise KeyboardInterrupt

x, y = np.ones((64, 4)), np.ones((64, 1))
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
{start}
with om.start("stopped", console=False):
    try:
        model.fit(x, y, batch_size=8, verbose=0, callbacks=[Stops()])
    except KeyboardInterrupt:
        pass
    with om.span("between"):
        pass
    model.fit(x, y, batch_size=8, verbose=0)
    for _ in range(2):
        model.train_on_batch(x, y)
    with om.phase("validate"):
        model.evaluate(x, y, verbose=0)
    model.save("model.keras")
    model.save_weights("model.weights.h5")
    model.load_weights("model.weights.h5")
"""


def record(tmp_path, start):
    require_packages("keras")
    done = subprocess.run(
        [sys.executable, "-c", STOPPED.format(start=start)],
        cwd=tmp_path,
        env=environment(tmp_path / "runs"),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Ended(done.returncode, done.stdout, done.stderr, tmp_path / "runs", tmp_path).settled()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A fit that was interrupted in its fourth batch, and what the program does then."""
    return record(tmp_path_factory.mktemp("stopped"), 'om.integrate("keras")')


@pytest.mark.frameworks
def test_interrupted_fit_leaves_nothing_open(stopped):
    """Three of its steps have ended, the next fit and single batches count on from there."""
    steps = stopped.rows("SELECT number FROM steps WHERE phase = 'train' ORDER BY n")
    (between,) = stopped.rows("SELECT path, n FROM sections WHERE name = 'between'")

    assert [step["number"] for step in steps] == list(range(3 + 8 + 2))
    assert (between["path"], between["n"]) == ("between", None)


@pytest.mark.frameworks
def test_validation_in_a_validation_is_one(stopped):
    """``evaluate`` inside a phase of the program's own is no second one."""
    rows = stopped.rows(
        "SELECT count(*) AS rows FROM sections WHERE path LIKE '%validate/validate'"
    )

    assert rows == [{"rows": 0}]


@pytest.mark.frameworks
def test_files_of_a_model_have_bytes_and_rate(stopped):
    """What was saved and what was loaded, with the size of the file."""
    rows = stopped.rows(
        "SELECT name, attributes FROM spans WHERE name LIKE 'checkpoint%' ORDER BY start_ns"
    )
    whole, weights = (
        (stopped.count / name).stat().st_size for name in ("model.keras", "model.weights.h5")
    )
    said = [json.loads(row["attributes"]) for row in rows]

    assert [row["name"] for row in rows] == ["checkpoint", "checkpoint", "checkpoint.load"]
    assert [one[names.CHECKPOINT_SIZE] for one in said] == [whole, weights, weights]
    assert all(one[names.CHECKPOINT_RATE] > 0 for one in said)


@pytest.mark.frameworks
def test_nobody_asked(tmp_path):
    """Without the integration a program that records itself has no step of Keras's."""
    ended = record(tmp_path, "")

    assert ended.rows("SELECT number FROM steps") == []


def keras_of(touched, backend):
    """Stands for a version of Keras that has only what is named."""
    keras = type("keras", (), {})
    for name in touched:
        *above, last = name.split(".")
        place = keras
        for part in above:
            if not hasattr(place, part):
                setattr(place, part, type(part, (), {}))
            place = getattr(place, part)
        setattr(place, last, staticmethod(lambda *_: backend))
    return keras


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_nothing_is_touched_that_is_not_named(backend):
    """A Keras that has what the integration says to need is enough for it."""
    KerasFit().switch_on(keras_of(KerasFit.needs, backend))
