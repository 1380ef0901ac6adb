"""FLOP/s, MFU and 6ND follow from the stored steps, and are absent if a part is unknown."""

from __future__ import annotations

import json

import pytest
from run_folders import MS, START, RunFolderBuilder, S
from summaries import rendered, summary_of

from otel_mlperf import names
from otel_mlperf.analysis.summary.work_figures import FORMULAS


def reading(run, metric, value, rank=0, **labels):
    run.row(
        "readings", rank=rank, restart=0, name=metric.name,
        labels=json.dumps(labels), time_ns=START, value=value,
    )  # fmt: skip


def model(run, name="Net", parameters=1000, trainable=1000, embedding=0):
    kinds = {"total": parameters, "trainable": trainable, "embedding": embedding}
    for kind, value in kinds.items():
        labels = {names.MODEL_NAME: name, names.PARAMETERS_KIND: kind}
        reading(run, names.MODEL_PARAMETERS, float(value), **labels)


def peak(run, value=1e9, rank=0):
    labels = {names.FLOPS_TYPE: "bfloat16", names.PEAK_SOURCE: "given", names.HW_MODEL: "X"}
    reading(run, names.FLOPS_PEAK, value, rank, **labels)


@pytest.fixture
def run(tmp_path):
    made = RunFolderBuilder(tmp_path / "runs")
    made.process(10 * S)
    return made


def steps(run, flops, tokens=None, rank=0):
    """Of 10 ms each, after a warm-up of 100 ms."""
    at = 0
    for n, count in enumerate([None, *flops]):
        spent = 10 * MS if n else 100 * MS
        run.step(n, at, {"forward": spent}, flops=count, tokens=tokens, rank=rank)
        at += spent


def test_without_a_named_model_there_are_none(run):
    """Steps alone say nothing of work."""
    steps(run, [None, None, None])

    assert summary_of(run).work is None


def test_operations_a_second_and_their_share_of_the_peak(run):
    """Of the steps whose operations are known, and their time alone."""
    model(run, parameters=1000, trainable=400)
    peak(run, 1e9)
    steps(run, [2_000_000, None, 4_000_000])

    work = summary_of(run).work
    assert (work.parameters, work.trainable, work.steps, work.of_steps) == (1000, 400, 2, 3)
    assert work.flops_per_step == 3_000_000
    assert work.flops_per_parameter == 3_000
    assert work.flops_per_s == pytest.approx(6_000_000 / 0.02)
    assert work.mfu == pytest.approx(0.3)
    assert (work.six_nd_flops_per_step, work.six_nd_mfu) == (None, None)
    assert set(work.formulas) == {"flops_per_step", "flops_per_parameter", "flops_per_s", "mfu"}


def test_six_nd_of_a_model_with_lookup_tables(run):
    """They multiply nothing; without tokens, or without a table, nothing is said."""
    model(run, parameters=1000, embedding=200)
    peak(run, 1e9)
    steps(run, [None] * 3, tokens=50)

    work = summary_of(run).work
    assert work.six_nd_flops_per_step == 6 * 800 * 50
    assert work.six_nd_mfu == pytest.approx(6 * 800 * 50 / 0.01 / 1e9)
    assert (work.flops_per_step, work.mfu) == (None, None)
    assert work.formulas["six_nd_flops_per_step"] == FORMULAS["six_nd_flops_per_step"]


def test_figures_are_those_of_one_rank(run):
    """Two ranks that do the same are as fast as one; on unlike devices no peak is theirs."""
    model(run)
    peak(run, 1e9)
    peak(run, 2e9, rank=1)
    for rank in (0, 1):
        steps(run, [2_000_000] * 3, rank=rank)

    work = summary_of(run).work
    assert work.flops_per_s == pytest.approx(2_000_000 / 0.01)
    assert (work.peak_flops_per_s, work.mfu) == (None, None)


def test_the_lines_of_a_summary(run, monkeypatch):
    """Size, operations, speed, and what the share is of."""
    model(run, parameters=12_345_678, trainable=1_000, embedding=12_000_000)
    peak(run, 1e9)
    steps(run, [2_000_000] * 3, tokens=10)

    text = rendered(run, monkeypatch)
    assert text[text.index("work ") :].splitlines()[:4] == [
        "work      12.3 M parameters (1,000 trainable) · 2.00 MFLOP per step ·",
        "          0 per parameter · 200 MFLOP/s ·",
        "          MFU 20 % of 1.00 GFLOP/s (bfloat16, given) ·",
        "          6ND 20.7 MFLOP per step, MFU 207 %",
    ]
