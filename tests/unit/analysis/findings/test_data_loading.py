"""Waiting for data is found where it occurs, with a gain that is no promise."""

from __future__ import annotations

import pytest
from run_folders import MS, START, RunFolderBuilder, S, digits

from otel_mlperf import names
from otel_mlperf.analysis.findings.finding_sources import judge_run
from otel_mlperf.findings.finding import Gain, Where
from otel_mlperf.findings.finding_table import row_of
from otel_mlperf.store.run_folders import read_run

IDLE = [("idle", 0.9), ("user", 0.1)]


def waiting(runs, wait_ms, work_ms, steps=10, **fields):
    """A run whose steps wait for so long, and work for so long."""
    run, spent = RunFolderBuilder(runs), (wait_ms + work_ms) * MS
    for n in range(steps):
        parts = {"data.load": wait_ms * MS, "forward": work_ms * MS}
        run.step(n, n * spent, parts, **fields)
    run.process(steps * spent)
    return run


def cpu(run, modes):
    """What share of the time the host's CPUs were in each mode."""
    for mode, share in modes:
        labels = f'{{"{names.CPU_MODE}": "{mode}"}}'
        name = names.SYSTEM_CPU_UTILIZATION.name
        for time_ns in (START, START + MS):  # one reading alone says nothing of a run
            row = {"name": name, "labels": labels, "time_ns": time_ns, "value": share}
            run.row("readings", rank=None, restart=0, **row)


def data_findings(run):
    found = judge_run(read_run(run.write())).findings
    return [one for one in found if one.id == "data_loading"]


def test_a_loop_that_waits_for_nine_tenths_of_its_time(tmp_path):
    """Share, times, place, advice, and the command that shows more."""
    run = waiting(tmp_path, 90, 10, kept="first")
    cpu(run, IDLE)
    (found,) = data_findings(run)

    assert (found.severity, found.summary) == (
        "warning",
        "training waits for data 90% of the time",
    )
    assert found.evidence == {
        "share": pytest.approx(0.9),
        "wait_ns": 90 * MS,
        "step_ns": 100 * MS,
        "steps": 10,
    }
    assert found.where == Where(section="data wait")
    assert found.action == row_of("data_loading").action
    assert found.command == "otel-mlperf show 3f2a --step 0"


@pytest.mark.parametrize(
    ("wait_ms", "work_ms", "gain"),
    [(90, 10, Gain(low=0.1, high=0.9)), (40, 60, Gain(low=0.4, high=0.4))],
)
def test_the_gain_lies_between_overlap_and_no_wait(tmp_path, wait_ms, work_ms, gain):
    """Loading beside the work wins the shorter of the two, no wait at all the whole wait."""
    (found,) = data_findings(waiting(tmp_path, wait_ms, work_ms))

    assert found.gain.low == pytest.approx(gain.low)
    assert found.gain.high == pytest.approx(gain.high)


def test_no_more_workers_where_no_cpu_is_free(tmp_path):
    """With all CPUs busy nothing may come of it, and the advice is another one."""
    run = waiting(tmp_path, 50, 50)
    cpu(run, [("idle", 0.02), ("user", 0.98)])
    (found,) = data_findings(run)

    assert found.gain == Gain(low=0.0, high=pytest.approx(0.5))
    assert "make loading a sample cheaper" in found.action


def test_little_wait_and_few_steps_are_no_finding(tmp_path):
    """Under the row's threshold, or with steps too few to say what is usual, nothing is told."""
    assert data_findings(waiting(tmp_path / "little", 29, 71)) == []
    assert data_findings(waiting(tmp_path / "few", 90, 10, steps=2)) == []


def test_other_phases_are_called_by_their_names(tmp_path):
    """A run of nothing but validation waits, too."""
    (found,) = data_findings(waiting(tmp_path, 90, 10, phase="validate"))

    assert found.summary == "validate steps wait for data 90% of the time"


def test_a_run_without_steps_has_none(tmp_path):
    """There is nothing to wait in."""
    run = RunFolderBuilder(tmp_path)
    run.outside("load_data", S)
    run.process(2 * S)

    assert data_findings(run) == []


def test_the_first_finding_of_digits(tmp_path):
    """The usual example waits for a third of its time."""
    (found,) = data_findings(digits(tmp_path))

    assert found.evidence["share"] == pytest.approx(0.353, abs=0.001)
