"""Warnings of a running run are reported afterwards, with their time, value and limit."""

from __future__ import annotations

import json

import pytest
from run_folders import MS, START, RunFolderBuilder, S, digits

from otel_mlperf import names
from otel_mlperf.analysis.findings.finding_sources import judge_run
from otel_mlperf.doctor.check_run import check_findings
from otel_mlperf.findings.finding import Warned, Where
from otel_mlperf.report.finding_lines import finding_text
from otel_mlperf.report.summary_table import render_summary
from otel_mlperf.store.run_folders import read_run
from otel_mlperf.store.table_reader import Store


def warned(run, id="data_loading", start=S, end=2 * S, value=0.45, threshold=0.3, **fields):
    """A row as the agent writes it: times in ns after the start of the run."""
    row = {"rank": 0, "restart": 0, "labels": "{}"} | fields
    times = {"start_ns": START + start, "end_ns": START + end}
    run.row("warnings", id=id, **times, value=value, threshold=threshold, **row)


def steps(runs, wait=MS, count=40):
    """Steps of 100 ms that wait for data for ``wait``."""
    run = RunFolderBuilder(runs)
    for n in range(count):
        run.step(n, n * 100 * MS, {"data.load": wait, "forward": 100 * MS - wait}, number=n + 500)
    run.process(10 * S)
    return run


def judged(run):
    return judge_run(read_run(run.write()))


def test_a_warning_that_passed_is_a_finding(tmp_path):
    """Although the whole run, judged by the same rule, is well."""
    run = steps(tmp_path)
    warned(run)
    (found,) = judged(run).findings

    assert (found.id, found.severity) == ("data_loading", "warning")
    assert found.summary == "training waits for data 45% of the time"
    assert found.action.startswith("Use more DataLoader workers")
    assert found.evidence == {"value": 0.45, "threshold": 0.3}
    assert found.where == Where(rank=0)
    assert found.warned == [
        Warned(after_ns=S, held_ns=S, steps=(509, 520), rank=0, value=0.45, threshold=0.3)
    ]


def test_a_warning_is_added_to_the_finding_of_the_whole_run(tmp_path):
    """One thing that is wrong is one finding, however it was noticed, and of whichever rank."""
    run = steps(tmp_path, wait=60 * MS)
    warned(run)
    warned(run, rank=1, start=3 * S, end=3 * S)
    (found,) = judged(run).findings

    assert found.summary == "training waits for data 60% of the time"
    assert found.gain is not None
    assert [(one.rank, one.after_ns, one.held_ns) for one in found.warned] == [
        (0, S, S),
        (1, 3 * S, 0),
    ]


def test_what_was_written_more_than_once_is_one_time(tmp_path):
    """The agent writes a warning at each flush in which it holds: the last says all."""
    run = steps(tmp_path)
    for end, value in ((2, 0.4), (4, 0.6), (3, 0.5)):
        warned(run, end=end * S, value=value)
    warned(run, start=8 * S, end=9 * S, value=0.35)
    (found,) = judged(run).findings

    assert [(one.after_ns, one.held_ns, one.value) for one in found.warned] == [
        (S, 3 * S, 0.6),
        (8 * S, S, 0.35),
    ]
    assert found.evidence["value"] == 0.6


def test_a_warning_of_the_node_is_of_no_rank_and_names_its_disk(tmp_path):
    """Its steps are those of all ranks; without any it says none."""
    run = steps(tmp_path)
    labels = json.dumps({names.MOUNTPOINT: "/data"})
    warned(run, "disk_full", value=0.97, threshold=0.95, rank=None, labels=labels)
    warned(run, "disk_full", 5 * S, 6 * S, 0.99, 0.95, rank=None, labels=labels)
    (found,) = judged(run).findings

    assert found.where == Where(device="/data")
    assert found.summary == "the disk of the run folder (/data) is 99% full"
    assert [one.steps for one in found.warned] == [(509, 520), None]


def test_what_the_readings_say_is_not_told_again(tmp_path):
    """A rule that is judged by stored readings, too: one finding, with both."""
    run = steps(tmp_path)
    for at, used in enumerate((500, 950, 990, 950, 500)):
        row = {"labels": "{}", "time_ns": START + 5 * at * S, "rank": 0, "restart": 0}
        run.row("readings", name=names.CGROUP_WORKING_SET.name, value=float(used), **row)
        run.row("readings", name=names.CGROUP_MEMORY_LIMIT.name, value=1000.0, **row)
    warned(run, "memory_near_limit", 5 * S, 15 * S, 0.99, 0.9)
    (found,) = judged(run).findings

    assert found.evidence == {"value": 0.99, "threshold": 0.9, "held_s": 10.0}
    assert [one.after_ns for one in found.warned] == [5 * S]


def test_a_warning_that_this_version_does_not_know_is_left_out(tmp_path):
    """A run folder of another version is read all the same."""
    run = steps(tmp_path)
    warned(run, "of_tomorrow")

    assert judged(run).findings == []


@pytest.mark.parametrize(
    ("times", "told"),
    [
        ([(1, 2)], "warned after 1.00 s (steps 509–520) for 1.00 s, limit 30 %"),
        ([(7, 7)], "warned after 7.00 s, limit 30 %"),
        (
            [(1, 2), (5, 6), (8, 9)],
            "warned after 1.00 s (steps 509–520) for 1.00 s, and 2 times more, limit 30 %",
        ),
    ],
)
def test_when_is_said_in_words(tmp_path, times, told):
    """From the begin of the run, with the steps, how long, how often and from which limit on."""
    run = steps(tmp_path)
    for start, end in times:
        warned(run, start=start * S, end=end * S)
    (found,) = judged(run).findings

    assert finding_text(found) == f"training waits for data 45 % of the time · {told}"


def test_a_limit_that_the_words_have_no_place_for_is_left_out(tmp_path):
    """That something happened is either so or not."""
    run = steps(tmp_path)
    warned(run, "killed_for_memory", 7 * S, 7 * S, 1.0, 0.0)
    (found,) = judged(run).findings

    assert finding_text(found).endswith("because memory ran out · warned after 7.00 s")


def test_summary_and_doctor_tell_the_same(tmp_path):
    """Both say the finding's words."""
    run = digits(tmp_path)
    warned(run)
    folder = read_run(run.write())
    page = " ".join(render_summary(judge_run(folder)).split())
    (check,) = check_findings(folder, Store(folder.path))

    assert check.found.endswith("for 1.00 s, limit 30 %")
    assert f"findings {check.found}" in page
