"""A loop that makes the CUDA allocator call the driver again and again is found."""

from __future__ import annotations

import json

import pytest
from gpu_readings import read_gpu
from run_folders import MS, START, RunFolderBuilder, S

from otel_mlperf import names
from otel_mlperf.analysis.findings.finding_sources import judge_run
from otel_mlperf.store.run_folders import read_run


def judged(tmp_path, of_second, busy=None, validates=False):
    """Findings of 40 s of steps of 100 ms, with so many allocations up to each second."""
    run = RunFolderBuilder(tmp_path)
    for n in range(4000 if validates else 0):
        run.step(n, n * 10 * MS, {"forward": 9 * MS}, own=MS, phase="validate")
    for n in range(400):
        run.step(n, n * 100 * MS, {"forward": 90 * MS}, own=10 * MS)
    for second in range(0, 41, 5):
        run.row(
            "readings", rank=0, restart=0, name=names.CUDA_DEVICE_ALLOCATIONS.name,
            labels=json.dumps({names.DEVICE_INDEX: "1"}), time_ns=START + second * S,
            value=float(of_second(second)),
        )  # fmt: skip
    if busy is not None:
        read_gpu(run, busy, range(5, 40, 5))
    run.process(40 * S, has_gpu=True)
    found = judge_run(read_run(run.write())).findings
    return [one for one in found if one.id == "device_allocations"]


def test_a_cache_that_is_emptied_each_step_is_found(tmp_path):
    """Twelve for each of ten steps a second; how long the GPU idles for it nobody knows."""
    (one,) = judged(tmp_path, lambda second: 120 * second)

    assert "requests memory from the driver 12.0 times per step" in one.summary
    assert (one.where.rank, one.where.device, one.gain) == (0, "cuda:1", None)
    assert one.evidence == {"allocations": 1800, "steps": 150}


def test_steps_of_another_phase_ask_for_nothing(tmp_path):
    """Ten short ones of a validation beside each."""
    (one,) = judged(tmp_path, lambda second: 13 * second, validates=True)

    assert "requests memory from the driver 1.3 times per step" in one.summary


def test_no_more_is_won_than_the_gpu_idles(tmp_path):
    """As far as its utilization is known."""
    (one,) = judged(tmp_path, lambda second: 120 * second, busy=0.8)

    assert (one.gain.low, one.gain.high) == (0.0, pytest.approx(0.2))


@pytest.mark.parametrize(
    "of_second",
    [
        lambda second: 5_000 * min(second, 15),
        lambda second: 3_000 if second > 32 else 200,
        lambda second: 5 * second,
    ],
    ids=["the first steps", "one moment", "now and then"],
)
def test_a_cache_that_fills_is_none(tmp_path, of_second):
    """Larger batches ask for more, once; a step in two may ask as well."""
    assert judged(tmp_path, of_second) == []
