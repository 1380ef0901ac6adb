"""Time in which a step awaited recorded tasks is distinguished from time in no section."""

from __future__ import annotations

import pytest
from run_folders import MS, RunFolderBuilder, S

from otel_mlperf.analysis.findings.finding_sources import judge_run
from otel_mlperf.analysis.steps.awaited_tasks import read_awaited_share
from otel_mlperf.store.run_folders import read_run
from otel_mlperf.store.table_reader import Store


def gathered(tmp_path, **of_others):
    """Steps of 100 ms: 20 in a section, 60 while three others go on, which overlap."""
    run = RunFolderBuilder(tmp_path)
    for n in range(20):
        at = n * 100 * MS
        run.step(n, at, {"update": 20 * MS}, own=80 * MS, kept="first")
        root = run.span(n, "train.step", at, 100 * MS, category="step")
        run.span(n, "update", at, 20 * MS, root_id=root)
        for track, since in enumerate((10, 20, 30)):
            of = {"track": 200 + track, "root_id": root} | of_others
            run.span(n, "fetch", at + since * MS, (80 - since) * MS, **of)
        run.section(run.steps[-1], "fetch", 150 * MS, beside=True)
    run.process(2 * S)
    return read_run(run.write())


@pytest.mark.parametrize(("of_others", "share"), [({}, 0.6), ({"thread_id": 7}, 0.0)])
def test_what_a_step_awaits_is_what_tasks_of_its_thread_do(tmp_path, of_others, share):
    """Once, however many there are, and not while it is in a section; threads do not count."""
    run = gathered(tmp_path, **of_others)

    assert read_awaited_share(Store(run.path), "train", has_warm_up=True) == pytest.approx(share)


def test_time_that_recorded_tasks_take_is_not_uncovered(tmp_path):
    """Of 80 % in no section of the step's own task, 20 are in none of the others either."""
    found = {one.id: one for one in judge_run(gathered(tmp_path)).findings}

    assert found["uncovered"].evidence["share"] == pytest.approx(0.2)
