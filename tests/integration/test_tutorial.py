"""The tutorial's example has two findings, and their repairs change no result."""

from __future__ import annotations

import json
import re
import sys

import pytest
import warm_python
from pages import DOCS, ROOT
from runs import LIMIT_S, environment, settle

from otel_mlperf.store.run_folders import list_runs

EXAMPLE = ROOT / "examples" / "slow_digits.py"
PAGE = (DOCS / "tutorial.md").read_text()


def output(folder, *words):
    """What a command prints to standard output."""
    return warm_python.check_output(
        [sys.executable, *words],
        cwd=folder, env=environment(folder / "runs", OMP_NUM_THREADS="1"), text=True,
        timeout=LIMIT_S,
    )  # fmt: skip


def test_the_example_fits_on_a_screen():
    """A reader sees all of it, and the page names its repairs."""
    assert len(EXAMPLE.read_text().splitlines()) <= 60
    for option in ("--score-every", "--prepare-once"):
        assert option in PAGE
        assert option in EXAMPLE.read_text()


@pytest.mark.slow
def test_repairs_change_no_result(tmp_path):
    """The losses are those of the slow version."""
    slow = output(tmp_path, str(EXAMPLE), "--epochs", "2")
    fast = output(tmp_path, str(EXAMPLE), "--epochs", "2", "--prepare-once", "--score-every", "20")

    losses = re.compile(r"loss [\d.]+")
    assert len(losses.findall(slow)) == 2
    assert losses.findall(fast) == losses.findall(slow)


@pytest.mark.slow
def test_the_two_findings_are_those_of_the_page(tmp_path):
    """The run reports the score that is computed each step, and the wait for data."""
    output(tmp_path, "-m", "otel_mlperf", "run", str(EXAMPLE), "--epochs", "12")
    (run,) = list_runs(tmp_path / "runs")
    settle(run.path)
    found = json.loads(output(tmp_path, "-m", "otel_mlperf", "findings", "--json"))["findings"]

    summaries = {finding["id"]: finding["summary"] for finding in found}
    assert "data_loading" in summaries
    # A machine that lets the sampler of lines wait leaves too few samples to name one.
    assert "f1_score()" in summaries.get("costly_line", "") or "uncovered" in summaries
