"""A summary's GPU figures equal those of its table, and idling is found."""

from __future__ import annotations

import json

import pytest
from run_folders import MS, RunFolderBuilder, S
from summaries import summary_of

from otel_mlperf import names
from otel_mlperf.analysis.findings.finding_sources import judge_run
from otel_mlperf.analysis.steps.sampled_step import read_step
from otel_mlperf.report.step_page import render_step
from otel_mlperf.report.summary_table import render_summary
from otel_mlperf.store.run_folders import read_run


def on_gpu(run, n, gpu=100, idle=40, host=45, device=50, length=120):
    """A step and its row of the device, in ms."""
    run.step(n, n * 1000 * MS, {"forward": length * MS}, kept="first")
    run.row(
        "gpu_steps",
        rank=0,
        restart=0,
        phase="train",
        n=n,
        number=n,
        device=0,
        gpu_ns=gpu * MS,
        idle_ns=None if idle is None else idle * MS,
        host_paced_ns=host * MS,
        device_paced_ns=device * MS,
    )


@pytest.fixture
def run(tmp_path):
    made = RunFolderBuilder(tmp_path / "runs")
    made.process(10 * S)
    return made


def test_means_of_all_steps(run):
    """Means and shares are of all steps but the warm-up."""
    on_gpu(run, 0, gpu=900, idle=0, length=900)
    for n in range(1, 5):
        on_gpu(run, n, gpu=100 + n, idle=40, host=20, device=80)

    gpu = summary_of(run).gpu
    assert gpu.steps == 4
    assert gpu.gpu_ns == 102.5 * MS
    assert gpu.idle_ns == 40 * MS
    assert gpu.device_share == pytest.approx(320 / 410)
    assert gpu.paced_by == "device"


def test_not_known(run):
    """A run without a GPU says nothing of one."""
    run.step(0, 0, {"forward": MS})
    summary = summary_of(run)
    assert summary.gpu is None
    assert "gpu time" not in render_summary(summary)


def test_a_line_of_the_summary(run):
    """GPU time, what of it was idle and who set the pace; a column tells of each section."""
    for n in range(4):
        on_gpu(run, n)
    run.row(
        "resources",
        rank=0,
        restart=0,
        phase="train",
        name="forward",
        category="forward",
        path="",
        beside=False,
        in_step=True,
        measure=names.GPU_NS.key,
        count=4,
        total=4 * 55 * MS,
        least=55 * MS,
        most=55 * MS,
        spread=0.0,
    )

    shown = render_summary(summary_of(run))
    assert "mean of a call" in shown
    assert "GPU time" in shown.split("mean of a call")[1].split("\n")[0]
    (line,) = (line for line in shown.split("\n") if line.strip().startswith("gpu time"))
    assert "100 ms per step" in line
    assert "idle 40.0 ms (40 %)" in line


@pytest.mark.parametrize(("idle", "found"), [(40, True), (29, False), (None, False)])
def test_idling_is_found(run, idle, found):
    """A GPU that idles for over 30 % of a step is a finding, with its figures."""
    for n in range(5):
        on_gpu(run, n, idle=idle)
    path = run.write()

    findings = judge_run(read_run(path)).findings
    mine = [finding for finding in findings if finding.id == "gpu_idle"]
    assert bool(mine) == found
    for finding in mine:
        assert finding.summary == "the GPU idles for 40% of a step"
        assert finding.evidence["share"] == 0.4


def test_one_step(run):
    """`show` says of a step how long a GPU was in it, and of its spans."""
    on_gpu(run, 3, host=80, device=10)
    run.span(3, "train.step", 0, 120 * MS, attributes=json.dumps({names.GPU_NS.attribute: 7 * MS}))
    path = run.write()

    shown = render_step(read_step(read_run(path), 3))
    assert "GPU 100 ms, idle 40.0 ms, host-bound" in shown
    assert "GPU time 7.00 ms" in shown
