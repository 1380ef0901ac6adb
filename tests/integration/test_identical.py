"""Training computes the same, bit for bit, whether or not it is recorded."""

from __future__ import annotations

import pickle
import sys

import numpy as np
import pytest
import warm_python
from runs import LIMIT_S, LOUD, PROGRAMS, Ended, environment

STEPS = 32
TRACED = ("process", "thread", "windows")


def train(folder, style):
    """What a seeded training computed, and what it left."""
    result, runs = folder / f"{style}.result", folder / f"{style}-runs"
    done = warm_python.run(
        [sys.executable, PROGRAMS / "seeded.py", "--to", result, "--style", style],
        env=environment(runs, **LOUD), capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    computed = pickle.loads(result.read_bytes())
    return computed, Ended(done.returncode, done.stdout, done.stderr, runs, folder / "none")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """What training computes when nothing is recorded."""
    return train(tmp_path_factory.mktemp("plain"), "plain")[0]


@pytest.fixture(scope="module", params=TRACED)
def traced(request, tmp_path_factory):
    """What it computes with the agent as a process, as a thread, or with profiler windows."""
    return train(tmp_path_factory.mktemp("traced"), request.param)


@pytest.mark.fault("F58")
def test_losses_and_weights_are_bit_identical(plain, traced):
    """Every loss on the way and every weight at the end is the same bytes."""
    (losses, weights, _), _ = traced

    assert len(losses) == STEPS
    assert losses == plain[0]
    assert len(set(losses)) == STEPS
    assert weights == plain[1]


@pytest.mark.fault("F58")
def test_random_states_are_where_they_would_be(plain, traced):
    """None of the three generators was drawn from."""
    (_, _, (python, (kind, keys, *rest), torch)), _ = traced
    plain_python, (plain_kind, plain_keys, *plain_rest), plain_torch = plain[2]

    assert python == plain_python
    assert (kind, rest) == (plain_kind, plain_rest)
    assert np.array_equal(keys, plain_keys)
    assert torch == plain_torch


def test_every_step_was_recorded(traced):
    """The comparison is with a run that did record: its losses are in the run folder."""
    (losses, _, _), ended = traced
    if ended.runs.name != "thread-runs":
        ended.settled()  # an agent in a thread ends with the program
    traces = list((ended.folder / "profiles").glob("*.pt.trace.json"))
    assert len(traces) == (4 if ended.runs.name == "windows-runs" else 0)
    (counted,) = ended.rows("SELECT count(*) AS steps FROM steps")
    stored = ended.rows("SELECT value FROM values WHERE name = 'loss' ORDER BY number")
    assert counted["steps"] == STEPS
    assert [np.float32(row["value"]).tobytes() for row in stored] == losses
