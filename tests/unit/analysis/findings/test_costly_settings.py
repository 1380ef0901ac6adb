"""Costly settings of PyTorch are found, with what they likely take."""

from __future__ import annotations

import json

import pytest
from gpu_readings import read_gpu
from run_folders import MS, START, RunFolderBuilder, S

from otel_mlperf import names
from otel_mlperf.analysis.findings.finding_sources import judge_run
from otel_mlperf.store.run_folders import read_run


def judged(tmp_path, looked, model="NVIDIA H200", busy=None, step_ms=60, passes=1):
    """Findings of steps of 60 ms, with what was looked up in their graph, by metric."""
    run = RunFolderBuilder(tmp_path)
    parts = {"forward": step_ms * MS // 4, "backward": step_ms * MS // 2}
    parts["optimizer"] = step_ms * MS // 4
    for n in range(400):
        run.step(n, n * step_ms * MS, parts)
        if passes > 1:
            step = {"rank": 0, "restart": 0, "phase": "train", "n": n, "number": n}
            run.section(step, "backward", 0, count=passes - 1)
    for metric, value in looked.items():
        run.row(
            "readings", rank=0, restart=0, name=metric.name, labels=json.dumps({}),
            time_ns=START + S, value=float(value),
        )  # fmt: skip
    gpu = {names.HW_ID: "GPU-0", names.HW_NAME: "gpu0", names.HW_MODEL: model}
    run.row(
        "readings", rank=None, restart=0, name=names.GPU_MEMORY_LIMIT.name, labels=json.dumps(gpu),
        time_ns=START, value=1.0,
    )  # fmt: skip
    read_gpu(run, busy or 0.0, range(2, 20, 3) if busy else [1])
    run.process(24 * S, has_gpu=True)
    found = judge_run(read_run(run.write())).findings
    return [one for one in found if one.id in SETTINGS]


SETTINGS = {
    "anomaly_detection", "full_precision", "double_precision", "dense_embeddings",
    "recomputed_activations",
}  # fmt: skip


@pytest.mark.parametrize(
    ("metric", "value", "rule", "low", "high"),
    [
        (names.GRAPH_DOUBLE, 1.0, "double_precision", 0.3, 0.6),
        (names.GRAPH_DOUBLE, 0.5, "double_precision", 0.15, 0.3),
        (names.GRAPH_UNUSED_ROWS, 0.8, "dense_embeddings", 0.12, 0.2 + 0.24),
        (names.GRAPH_CHECKPOINTS, 6.0, "recomputed_activations", 0.15, 0.375),
    ],
)
def test_types_and_repeated_work_are_found(tmp_path, metric, value, rule, low, high):
    """Of a step with a quarter of forward, a half of backward and a quarter of update."""
    (one,) = judged(tmp_path, {metric: value})

    assert (one.id, one.where.rank) == (rule, 0)
    assert (one.gain.low, one.gain.high) == (pytest.approx(low), pytest.approx(high))


@pytest.mark.parametrize(
    ("metric", "value"),
    [(names.GRAPH_DOUBLE, 0.2), (names.GRAPH_UNUSED_ROWS, 0.5), (names.GRAPH_CHECKPOINTS, 0.0)],
)
def test_little_of_it_is_no_finding(tmp_path, metric, value):
    """A few products, a small table, and none at all."""
    assert judged(tmp_path, {metric: value}) == []


def test_anomaly_detection_is_found_with_what_it_likely_takes(tmp_path):
    """Of 250 operations 50 to 160 µs each: 12.5 of 60 ms, and at most 0.4 of a step more."""
    (one,) = judged(tmp_path, {names.GRAPH_NODES: 250, names.AUTOGRAD_ANOMALY: 1})

    assert (one.id, one.where.rank) == ("anomaly_detection", 0)
    assert (one.gain.low, one.gain.high) == (
        pytest.approx(12.5 / 60),
        pytest.approx(12.5 / 60 + 0.4),
    )
    assert "at least 21% of a step" in one.summary


@pytest.mark.parametrize(("nodes", "is_on"), [(250, 0), (20, 1)])
def test_off_or_hardly_any_operation_is_no_finding(tmp_path, nodes, is_on):
    """Of twenty operations in 60 ms nobody notices the stacks."""
    assert judged(tmp_path, {names.GRAPH_NODES: nodes, names.AUTOGRAD_ANOMALY: is_on}) == []


def test_products_in_float32_are_found_with_what_they_take_at_least(tmp_path):
    """1.86e12 operations: 27.8 ms at 67 TFLOP/s, 3.8 at 494.5, of a step of 60."""
    (one,) = judged(tmp_path, {names.GRAPH_FLOAT32: 1.86e12})

    least = 1.86e12 * (1 / 67e12 - 1 / 494.5e12) / 0.060
    assert (one.id, one.where.rank) == ("full_precision", 0)
    assert (one.gain.low, one.gain.high) == (pytest.approx(least), pytest.approx(least / 0.6))
    assert "without the tensor cores of the NVIDIA H200" in one.summary
    assert "likely save 40% of a step" in one.summary


def test_each_backward_pass_of_a_step_counts(tmp_path):
    """Gradients of two batches are added up before an update."""
    (one,) = judged(tmp_path, {names.GRAPH_FLOAT32: 0.93e12}, passes=2)

    assert one.gain.low == pytest.approx(1.86e12 * (1 / 67e12 - 1 / 494.5e12) / 0.060)


@pytest.mark.parametrize(
    ("operations", "model", "busy"),
    [
        (1e11, "NVIDIA H200", None),
        (1.86e12, "Tesla T4", None),
        (1.86e12, "NVIDIA H200", 0.4),
        (1e13, "NVIDIA H200", None),
    ],
    ids=["few products", "no TF32", "the host sets the pace", "more than the passes take"],
)
def test_where_nothing_is_won_nothing_is_found(tmp_path, operations, model, busy):
    """The GPU must have TF32 and be what is waited for."""
    assert judged(tmp_path, {names.GRAPH_FLOAT32: operations}, model, busy) == []
