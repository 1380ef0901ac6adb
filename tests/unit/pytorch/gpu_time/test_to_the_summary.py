"""The times of a simulated device arrive in the summary, exactly."""

from __future__ import annotations

import json
import os
from pathlib import Path

from by_hand import agent_folder

import otel_mlperf as om
from otel_mlperf import names
from otel_mlperf.agent.intake.tail import Tail
from otel_mlperf.agent.lifecycle.agent_loop import Agent
from otel_mlperf.agent.model.agent_options import Options
from otel_mlperf.agent.model.sampling import Policy
from otel_mlperf.analysis.findings.finding_sources import judge_run
from otel_mlperf.store.run_folders import read_run
from otel_mlperf.store.table_reader import Store

US, MS = 1_000, 1_000_000


def test_figures_of_a_loop(gpu_run):
    """Sums of every call, the step's idle time, who set the pace, the finding, kept spans."""
    gpu = gpu_run.gpu
    for n in range(40):
        with om.step():
            gpu.host(30 * MS)
            for name, ns in (("forward", (n + 1) * US * 100), ("backward", 8 * MS)):
                with om.span(name):
                    gpu.launch(ns)
                    gpu.host(20 * US)
            gpu.wait()
    gpu.host(100 * MS)
    recorder = gpu_run.recorder
    path = recorder.journal.path
    agent = Agent(
        agent_folder(recorder.meta),
        Tail(Path(os.path.dirname(path)), {path: recorder.journal.buffer}),
        Options(policy=Policy()),
    )
    om.stop()
    agent.run()

    run = read_run(gpu_run.run.path)
    summary = judge_run(run)
    used = {use.name: use.figures[names.GPU_NS.key] for use in summary.used}
    assert used["forward"].count == 40
    assert used["forward"].total == sum((n + 1) * US * 100 for n in range(40))
    assert used["backward"].total == 40 * 8 * MS
    assert summary.gpu.paced_by == "host"
    assert 0.7 < summary.gpu.idle_share < 0.8
    assert "gpu_idle" in {finding.id for finding in summary.findings}
    kept = Store(run.path).rows("SELECT attributes FROM spans WHERE name = 'backward'")
    assert {json.loads(text)[names.GPU_NS.attribute] for (text,) in kept} == {8 * MS}
