"""The examples train the same in every style, and report where their time went."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import warm_python
from runs import LIMIT_S, Ended
from section_rows import count_calls

from otel_mlperf.journal.profiler_windows import read_window
from otel_mlperf.store.run_folders import list_runs
from otel_mlperf.store.table_reader import Store

EXAMPLES = Path(__file__).parents[2] / "examples"
EPOCHS, STEPS = 2, 44
PARTS = ["backward", "data.load", "forward", "optimizer"]
LINES = {
    "explicit": ["train_digits.py"],
    "decorators": ["train_digits_decorators.py"],
    "untouched": ["-m", "otel_mlperf", "run", "train_digits_untouched.py"],
    "profiled": ["train_digits_profiled.py"],
    "explicit under run": ["-m", "otel_mlperf", "run", "train_digits.py"],
}


@pytest.fixture(scope="session")
def train(tmp_path_factory):
    """Trains with an example, once a style; gives what it left, and the folder it ran in."""
    done = {}

    def start(*words):
        if words not in done:
            folder = tmp_path_factory.mktemp("example")
            options = ("--epochs", str(EPOCHS), "--checkpoint", str(folder / "digits.pt"))
            process = warm_python.run(
                [sys.executable, *words, *options],
                cwd=EXAMPLES,
                env={**os.environ, "OTEL_MLPERF_DIR": str(folder / "runs")},
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
            runs = folder / "runs"
            ended = Ended(process.returncode, process.stdout, process.stderr, runs, folder)
            if list_runs(runs):
                ended.settled()
            done[words] = ended, folder
        return done[words]

    return start


def store_of(folder):
    (run,) = list_runs(folder / "runs")
    return Store(run.path)


def parts_of_steps(folder, phase="train"):
    calls = count_calls(store_of(folder), "phase = $phase AND n IS NOT NULL", phase=phase)
    return list(calls)


def count_steps(folder):
    sql = "SELECT phase, count(*) FROM steps GROUP BY phase ORDER BY phase"
    return store_of(folder).rows(sql)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("style", LINES)
def test_training_is_the_same_with_and_without(train, style):
    """Accuracies and the saved weights are bit for bit those of plain Python."""
    plain, plain_folder = train("train_digits_untouched.py")

    done, folder = train(*LINES[style])

    assert (done.code, done.output) == (0, plain.output), done.errors
    assert done.output.count("accuracy") == EPOCHS
    assert (folder / "digits.pt").read_bytes() == (plain_folder / "digits.pt").read_bytes()


@pytest.mark.slow
def test_explicit_style_shows_training_and_validation(train):
    """Every step of both phases is stored, with its data wait and the sections inside."""
    _, folder = train(*LINES["explicit"])

    assert count_steps(folder) == [("train", EPOCHS * STEPS), ("validate", EPOCHS * 12)]
    assert parts_of_steps(folder) == PARTS
    assert parts_of_steps(folder, "validate") == ["data.load", "forward"]


def test_decorated_functions_are_steps_and_sections(train):
    """Each call of the decorated step function is a step."""
    _, folder = train(*LINES["decorators"])

    assert count_steps(folder) == [("train", EPOCHS * STEPS)]
    assert parts_of_steps(folder) == ["Trainer.backward", "Trainer.forward", "optimizer"]


@pytest.mark.slow
def test_untouched_script_shows_its_steps(train):
    """Hooks find the steps, the data wait and the parts of a script that knows nothing of it."""
    _, folder = train(*LINES["untouched"])

    assert count_steps(folder) == [("train", EPOCHS * STEPS)]
    assert parts_of_steps(folder) == sorted([*PARTS, "loss"])


@pytest.mark.slow
def test_script_that_records_itself_goes_on_with_the_run(train):
    """Under ``otel-mlperf run`` its own start() is that run, and its sections are its own."""
    _, alone = train(*LINES["explicit"])
    _, folder = train(*LINES["explicit under run"])

    assert count_steps(folder) == count_steps(alone)
    assert parts_of_steps(folder) == parts_of_steps(alone)
    (run,) = list_runs(folder / "runs")
    assert (run.facts.name, run.facts.params) == ("train_digits", {"lr": 1e-3, "batch": 32})


@pytest.mark.slow
def test_profiled_style_leaves_a_window_in_each_epoch(train):
    """Three steps of each, and the last validation; all of them are kept as spans."""
    _, folder = train(*LINES["profiled"])
    (run,) = list_runs(folder / "runs")
    found = sorted((run.path / "profiles").glob("*.window.json"))
    steps = [[(s.phase, s.n) for s in read_window(path).steps] for path in found]

    assert steps[:EPOCHS] == [
        [("train", epoch * STEPS + i) for i in (11, 12, 13)] for epoch in range(EPOCHS)
    ]
    assert {phase for phase, _ in steps[EPOCHS]} == {"validate"}
    sql = "SELECT phase, n FROM steps WHERE kept = 'profiled' ORDER BY phase, n"
    assert store_of(folder).rows(sql) == [step for window in steps for step in window]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("style", LINES)
def test_terminal_ends_with_the_summary(train, style):
    """The closing text comes last, on stderr, and nothing was lost."""
    done, _ = train(*LINES[style])

    # On a busy machine the figures are incomplete, or the summary is replaced by its command.
    is_late = "incomplete: " in done.errors or "the summary was not ready" in done.errors
    text = done.summary if is_late else done.errors
    assert "finished · 1 rank, 1 node" in text
    assert "telemetry 0 records lost" in text
    assert text.splitlines()[-1].startswith("next      otel-mlperf show")


def test_examples_are_short():
    """What people copy fits on a screen or two."""
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text().splitlines()) < 120, path.name
