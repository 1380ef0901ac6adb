"""A start that is far longer than what follows is found, and no other."""

from __future__ import annotations

import numpy as np
import pytest
from loader_runs import LoaderRun
from run_folders import MS

from otel_mlperf.analysis.findings.finding_sources import judge_run
from otel_mlperf.store.run_folders import read_run


def found_in(run, *ids):
    found = judge_run(read_run(run.write())).findings
    return {one.id: one for one in found if one.id in (ids or ("cold_start",))}


def trained(tmp_path, of_step, count=200):
    """Steps of some 20 ms and what ``of_step`` adds to each, in milliseconds of waiting."""
    run, rng, at = LoaderRun(tmp_path), np.random.default_rng(1), 0
    for n in range(count):
        parts = {"data.load": int(of_step(n) * MS)}
        parts["forward"] = int(20 * MS * (1 + 0.05 * rng.standard_normal()))
        run.step(n, at, parts)
        at += sum(parts.values())
    run.process(at)
    return run


def test_the_first_steps_of_a_training(tmp_path):
    """Files that are read the first time: what they take beyond later ones, and where."""
    one = found_in(trained(tmp_path, lambda n: 80 if n < 21 else 1))["cold_start"]

    assert "the first 21 steps take" in one.summary
    assert (one.where.section, one.where.steps) == ("data wait", (0, 20))
    assert one.evidence["excess_ns"] == pytest.approx(21 * 79 * MS, rel=0.02)
    assert one.gain.high == pytest.approx(21 * 79 / (200 * 21 + 21 * 79), rel=0.02)
    assert one.gain.of == "run"


def test_a_first_step_that_compiles(tmp_path):
    """It is the warm-up of the figures, and no section is blamed for it."""
    one = found_in(trained(tmp_path, lambda n: 3000 if n == 0 else 1))["cold_start"]

    assert "the first step takes 3,0" in one.summary
    assert (one.where.section, one.where.steps) == ("", (0, 0))


def test_only_steps_that_are_long_are_the_first_steps(tmp_path):
    """A first step of a second, and four that take a few milliseconds more: one step is named."""
    more = {0: 1200, 1: 7, 2: 1, 3: 1, 4: 3}
    one = found_in(trained(tmp_path, lambda n: 1 + more.get(n, 0)))["cold_start"]

    assert "the first step takes 1,2" in one.summary
    assert one.where.steps == (0, 0)


def test_what_is_compiled_first_is_no_cold_start(tmp_path):
    """Three seconds of torch.compile in the first step, and another one in the sixth."""
    run = LoaderRun(tmp_path)
    for n in range(200):
        compiles = {0: 3000, 5: 1000}.get(n, 0)
        run.step(n, n * 30 * MS, {"forward": 20 * MS, "compile": compiles * MS})
    run.process(200 * 30 * MS)

    assert found_in(run) == {}


@pytest.mark.parametrize(
    "of_step",
    [
        lambda n: 1,
        lambda n: 300 if n == 0 else 1,  # a moment of every program
        lambda n: 80 if 90 < n < 110 else 1,  # in the middle
        lambda n: 80 if n < 120 else 1,  # more than half of it is no beginning
        lambda n: 80 if n % 10 == 0 else 1,
        lambda n: 80 if n < 21 or 60 < n < 80 else 1,  # it comes and goes
    ],
)
def test_what_is_no_beginning(tmp_path, of_step):
    """Nothing is said."""
    assert found_in(trained(tmp_path, of_step)) == {}


def test_each_pass_begins_slowly(tmp_path):
    """Its first batch takes long; the stall every so many steps and the wait are that."""
    run = trained(tmp_path, lambda n: 300 if n % 20 == 0 else 1)
    run.counted_batches(200, 10 * 300 + 190)
    run.workers((0.5, 0.1, 0.5), batches=200)
    run.passes("none", 10, 0.3)
    found = found_in(run, "cold_start", "periodic_stall", "data_loading")

    one = found["cold_start"]
    assert "the first batch of each of 10 passes through Pix takes 300 ms" in one.summary
    assert one.evidence["usual_ns"] == pytest.approx(MS)
    assert "periodic_stall" not in found
    assert found["data_loading"].action.startswith("See the finding cold_start")


def test_passes_that_begin_as_they_go_on(tmp_path):
    """Nothing is said of these."""
    run = trained(tmp_path, lambda n: 1)
    run.counted_batches(200, 200)
    run.passes("kept", 10, 0.001)

    assert found_in(run) == {}
