"""A GPU that idles while the host launches one small piece after the other is found."""

from __future__ import annotations

import pytest
from gpu_readings import read_gpu
from run_folders import MS, RunFolderBuilder, S

from otel_mlperf.analysis.findings.finding_sources import judge_run
from otel_mlperf.store.run_folders import read_run

LAUNCHING = {"forward": 7 * MS, "backward": 8 * MS, "optimizer": 3 * MS}


def judged(tmp_path, busy, sections=LAUNCHING, own=2 * MS, at=(5, 10, 15), ranks=1):
    """Findings of 20 s of such steps of 20 ms, with a GPU that is so busy at these seconds."""
    run = RunFolderBuilder(tmp_path, world_size=ranks)
    for rank in range(ranks):
        for n in range(1000):
            run.step(n, n * 20 * MS, sections, own=own, rank=rank)
        run.process(20 * S, rank=rank, world_size=ranks, has_gpu=True)
        read_gpu(run, busy[rank] if ranks > 1 else busy, at, rank=rank)
    found = judge_run(read_run(run.write())).findings
    return [one for one in found if one.id == "small_operators"]


def test_a_gpu_that_waits_for_launches_is_found_with_what_a_graph_would_save(tmp_path):
    """Forward, backward and optimizer take the host 90 % of a step, the GPU works for 20 %."""
    (one,) = judged(tmp_path, 0.2)

    assert "the GPU is busy only 20% of the time" in one.summary
    assert "take 90% of a step on the host, most of it in backward" in one.summary
    assert one.where.section == "backward"
    assert one.evidence["share"] == pytest.approx(0.7)
    assert one.gain.low < 0.7 < one.gain.high
    assert "torch.cuda.graph()" in one.action


@pytest.mark.parametrize(
    ("busy", "sections", "own"),
    [
        (0.75, LAUNCHING, 2 * MS),
        (0.2, {"data.load": 14 * MS, "forward": 4 * MS}, 2 * MS),
        (0.2, {"forward": 6 * MS}, 14 * MS),
    ],
    ids=["it works", "the loader is waited for", "the loop does something else"],
)
def test_a_gpu_that_idles_for_another_reason_does_not_wait_for_launches(
    tmp_path, busy, sections, own
):
    """Only what the host needs for launching can be saved by a graph."""
    assert judged(tmp_path, busy, sections, own) == []


def test_a_gpu_that_was_hardly_read_is_not_judged(tmp_path):
    """Two readings among the steps are no mean; those before and after are of something else."""
    assert judged(tmp_path, 0.2, at=(5, 10, 21, 30)) == []


def test_it_is_the_rank_whose_gpu_has_least_to_do(tmp_path):
    """Each rank is judged by the GPU that it has memory of."""
    (one,) = judged(tmp_path, (0.8, 0.1), ranks=2)

    assert one.where.rank == 1
    assert one.evidence["gpu_busy"] == pytest.approx(0.1)
