"""Steps that work on padding are found, with its cost."""

from __future__ import annotations

import numpy as np
import pytest
from loader_runs import LoaderRun
from run_folders import MS, START, RunFolderBuilder, S

from otel_mlperf import names
from otel_mlperf.analysis.findings.finding_sources import judge_run
from otel_mlperf.store.run_folders import read_run


def found_in(run):
    found = judge_run(read_run(run.write())).findings
    return {one.id: one for one in found}.get("uneven_batches")


def texts(tmp_path, sample_elements, per_element_ns=10_000, spread=500, steps=100):
    """Steps of 5 ms and 10 us for each of some 2,000 elements of a batch."""
    run, rng, at = LoaderRun(tmp_path), np.random.default_rng(1), 0
    for n in range(steps):
        elements = int(rng.uniform(2000 - spread, 2000 + spread))
        parts = {"data.load": int(rng.uniform(0, 3) * MS)}
        parts["forward"] = 5 * MS + elements * per_element_ns
        run.step(n, at, parts, elements=elements)
        at += sum(parts.values())
    run.process(at)
    run.counted_batches(steps, 150)
    run.workers((1.0, 0.1, 1.0), batches=steps)
    if sample_elements:
        run.counted(names.LOADER_SIZED, 40, worker="main")
        run.counted(names.LOADER_ELEMENTS, 40 * sample_elements, worker="main")
    return run


def test_padding_that_is_worked_on(tmp_path):
    """Half of the elements are padding: they take half of what follows the size of a batch."""
    one = found_in(texts(tmp_path, sample_elements=1000))

    assert one.evidence["padding"] == pytest.approx(0.5, abs=0.02)
    assert one.evidence["element_ns"] == pytest.approx(10_000, rel=0.02)
    assert one.gain.high == pytest.approx(10 / 26.5, abs=0.02)
    assert one.gain.low == pytest.approx(0.75 * one.gain.high)
    assert "50% of a batch is likely padding" in one.summary


@pytest.mark.parametrize(
    "run",
    [
        {"sample_elements": 1900},  # sorted by length
        {"sample_elements": 0},  # nobody looked at the samples
        {"sample_elements": 5000},  # they were cut: no padding can be told
        {"sample_elements": 1000, "per_element_ns": 0},  # time does not follow size
        {"sample_elements": 1000, "spread": 50},  # batches are of one size
    ],
)
def test_what_is_no_padding(tmp_path, run):
    """Nothing is said."""
    assert found_in(texts(tmp_path, **run)) is None


def padded(tmp_path, padded, forward_ms=20):
    """Steps of one size, of whose places so many of 1,000 are padding."""
    run = RunFolderBuilder(tmp_path)
    for n in range(100):
        run.step(n, n * 50 * MS, {"forward": forward_ms * MS, "optimizer": 10 * MS})
    run.process(5 * S)
    for metric, value in ((names.PLACES, 1000.0), (names.PADDED, float(padded))):
        run.row(
            "readings", rank=0, restart=0, name=metric.name, labels="{}",
            time_ns=START + 5 * S, value=value,
        )  # fmt: skip
    return run


def test_padding_in_batches_of_one_size(tmp_path):
    """Six tenths of the places are padding, and the passes take two thirds of a step."""
    one = found_in(padded(tmp_path, 600))

    assert one.evidence["padding"] == pytest.approx(0.6)
    assert (one.gain.low, one.gain.high) == pytest.approx((0.3, 2 / 3 * 0.84))
    assert "60% of the elements of a batch are padding" in one.summary


def test_a_little_padding_and_little_computing(tmp_path):
    """Neither is worth a word."""
    assert found_in(padded(tmp_path, 150)) is None
    assert found_in(padded(tmp_path / "other", 600, forward_ms=1)) is None
