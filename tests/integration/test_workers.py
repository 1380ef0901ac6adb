"""The work of DataLoader workers is in the summary, and a run without steps is on the screen."""

from __future__ import annotations

import json
import sys

import pytest
import warm_python
from kineto_recorded import needs_torch
from runs import LIMIT_S, Ended, environment

SAMPLES, BATCH = 24, 4
LOADS = """
import sys

import torch
from torch.utils.data import DataLoader, Dataset

import otel_mlperf as om


class Samples(Dataset):
    def __len__(self):
        return {samples}

    def __getitem__(self, at):
        with om.span("decode"):
            with om.span("resize"):
                torch.rand(60, 60) @ torch.rand(60, 60)
            with om.span("read", aggregate=True):
                torch.rand(60, 60) @ torch.rand(60, 60)
        return torch.ones(4)


def main(has_steps):
    with om.start(name="loads"):
        loader = DataLoader(Samples(), batch_size={batch}, num_workers=2)
        if has_steps:
            for batch in om.steps(loader):
                with om.span("forward"):
                    batch.sum()
        else:
            with om.span("prepare"):
                for batch in loader:
                    batch.sum()


if __name__ == "__main__":
    main("steps" in sys.argv)
"""


def loaded(folder, *arguments):
    """The program's run, once all of it is stored."""
    script = folder / "loads.py"
    script.write_text(LOADS.format(samples=SAMPLES, batch=BATCH))
    done = warm_python.run(
        [sys.executable, str(script), *arguments],
        env=environment(folder / "runs"),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Ended(0, "", done.stderr, folder / "runs", folder).settled()


def told(ended, *words):
    """What a command says of it."""
    command = [sys.executable, "-m", "otel_mlperf", *words]
    return warm_python.check_output(command, env=environment(ended.runs), text=True)


pytestmark = needs_torch


@pytest.mark.slow
def test_sections_of_workers_have_rows_beside_the_steps(tmp_path):
    """Those inside others and those only added up too: what the tables have, over all steps."""
    ended = loaded(tmp_path, "steps")
    summary = json.loads(told(ended, "summary", "--json"))

    beside = {row["name"]: row for row in summary["steps"]["rows"] if row["beside"]}
    assert set(beside) == {"decode", "resize", "read"}
    steps = summary["steps"]["count"]
    assert steps == SAMPLES // BATCH
    whole = ended.rows(
        "SELECT sum(sum_ns) AS ns, sum(count) AS n FROM sections WHERE name = 'decode'"
    )
    together = sum(row["mean_ns"] for row in beside.values())
    assert (whole[0]["n"], round(together * steps)) == (SAMPLES, whole[0]["ns"])
    text = told(ended, "summary").splitlines()
    below = text[text.index("  concurrent with the step") + 1 :]
    assert {line.split()[0] for line in below[:3]} == set(beside)


def test_a_run_without_steps_shows_its_sections(tmp_path):
    """The run itself around them, and beside it what ran in workers."""
    ended = loaded(tmp_path)
    shown = json.loads(told(ended, "show", "--json"))["ranks"][0]["spans"]
    # On a busy machine a collection takes long enough for a span of its own.
    spans = [span for span in shown if span["name"] != "gc.collect"]

    assert [(span["name"], span["depth"]) for span in spans[:2]] == [("run", 0), ("prepare", 1)]
    decoded = [span for span in spans if span["name"] == "decode"]
    assert decoded
    assert all(span["beside"] for span in decoded)
    lines = told(ended, "show").splitlines()
    assert lines[0].endswith("the run itself and sections outside steps")
    assert lines[4].split()[0] == "run"
    branches = json.loads(told(ended, "summary", "--json"))["tree"]
    assert {"decode", "resize"} <= {branch["name"] for branch in branches if branch["beside"]}
