"""The time outside steps is broken down by cause, each part once."""

from __future__ import annotations

import pytest
from run_folders import MS, START, RunFolderBuilder, S
from summaries import rows_of, summary_of

from otel_mlperf.analysis.summary.summary import summarize
from otel_mlperf.analysis.summary.summary_shapes import OutsideShare
from otel_mlperf.report.summary_notes import closing_lines
from otel_mlperf.store.run_folders import read_run


def test_background_work_takes_nothing_from_the_time_outside(tmp_path):
    """It is told by itself, may be longer than the run, and leaves set-up as it is."""
    run = RunFolderBuilder(tmp_path)
    run.step(0, 40 * MS, {"forward": 50 * MS})
    run.outside("bg", 10 * MS, count=2)
    run.outside("bg", 990 * MS, count=240, beside=True)
    run.outside("loading/bg", 5 * MS, count=2, beside=True, start_ns=START + 11 * MS)
    run.outside("loading", 20 * MS, start_ns=START + 10 * MS)
    run.process(100 * MS)

    summary = summary_of(run)

    assert summary.beside == [OutsideShare(name="bg", sum_ns=995 * MS, count=242)]
    assert summary.outside == [
        OutsideShare(name="loading", sum_ns=20 * MS, count=1),
        OutsideShare(name="bg", sum_ns=10 * MS, count=2),
        OutsideShare(name="set-up", sum_ns=10 * MS),
        OutsideShare(name="untracked", sum_ns=10 * MS),
    ]


def test_pause_behind_the_end_of_a_validation_does_not_hide_it(tmp_path):
    """Its end is found out when something else begins; what was collected until then is its."""
    run = RunFolderBuilder(tmp_path)
    run.step(0, 0, {"forward": 50 * MS})
    run.outside("validate", 20 * MS, self_ns=1 * MS, count=2)
    run.outside("validate/forward", 19 * MS)
    run.outside("validate/gc.collect", 10 * MS)
    run.process(100 * MS)

    assert summary_of(run).outside[:1] == [
        OutsideShare(name="validate", sum_ns=20 * MS, count=2),
    ]


def test_forked_children_take_nothing_from_what_their_rank_did_itself(tmp_path):
    """Sections of the same names, in each other, and added up: all of it is beside."""
    run = RunFolderBuilder(tmp_path)
    run.step(0, 40 * MS, {"forward": 50 * MS}, own=0)
    run.outside("load", 20 * MS, start_ns=START + 10 * MS)
    run.outside("load", 300 * MS, count=10, self_ns=100 * MS, beside=True)
    run.outside("load/read", 200 * MS, count=20, beside=True)
    run.section(
        None, "decode", 40 * MS, aggregate=True, beside=True, parent="forward", phase="train"
    )
    run.process(100 * MS)

    summary = summary_of(run)

    assert rows_of(summary) == [("forward", 50.0), ("untracked", 0.0)]
    assert summary.beside == [OutsideShare(name="load", sum_ns=300 * MS, count=10)]
    assert summary.outside == [
        OutsideShare(name="load", sum_ns=20 * MS, count=1),
        OutsideShare(name="set-up", sum_ns=20 * MS),
        OutsideShare(name="untracked", sum_ns=10 * MS),
    ]
    assert "added up  decode ×1: 40.0 ms concurrent with forward" in closing_lines(summary)


@pytest.mark.parametrize(
    ("path", "phase"),
    [("warm", "train"), ("fit/warm", "train"), ("validate", "validate"), ("validate", "train")],
)
def test_phases_of_any_name_leave_the_time_outside_as_it_is(tmp_path, path, phase):
    """Its parts add up to it, whatever a block is called and wherever its steps count."""
    run = RunFolderBuilder(tmp_path)
    run.step(0, 100 * MS, {"forward": 50 * MS})
    run.step(1, 310 * MS, {"forward": 90 * MS}, phase=phase)
    inner, name = 100 * MS, path.rpartition("/")[2]
    run.outside(path, 200 * MS, category="phase", start_ns=START + 210 * MS, self_ns=10 * MS)
    run.outside(f"{path}/read", inner, self_ns=inner, start_ns=START + 210 * MS)
    if (name, phase) == ("validate", "train"):
        run.outside("validate/train", 90 * MS, category="phase", self_ns=0)
    run.process(500 * MS)

    summary = summary_of(run)

    assert summary.outside_ns == (360 if phase == "train" else 450) * MS
    assert sum(one.sum_ns for one in summary.outside) == pytest.approx(summary.outside_ns)
    named = {one.name for one in summary.outside}
    assert ("validate" if phase == "validate" else "read") in named


def test_a_section_around_the_steps_is_looked_into(tmp_path):
    """``with span("fit"):`` around a loop is not outside time; what it holds beside steps is."""
    run = RunFolderBuilder(tmp_path)
    run.step(0, 100 * MS, {"forward": 500 * MS})
    run.outside("fit", 800 * MS, self_ns=100 * MS, start_ns=START + 50 * MS)
    run.outside("fit/save", 200 * MS, start_ns=START + 650 * MS)
    run.process(S)

    assert summary_of(run).outside == [
        OutsideShare(name="save", sum_ns=200 * MS, count=1),
        OutsideShare(name="set-up", sum_ns=100 * MS),
        OutsideShare(name="untracked", sum_ns=200 * MS),
    ]


@pytest.mark.parametrize("spent", [1, 10 * MS, 500 * MS])
def test_steps_inside_a_section_are_found_however_short_they_are(tmp_path, spent):
    """A nanosecond among hours is the step's all the same, and is counted once."""
    run = RunFolderBuilder(tmp_path)
    run.step(0, 100 * MS, {"forward": spent}, own=0)
    run.outside("fit", S + spent, self_ns=700 * MS, start_ns=START)
    run.outside("fit/save", 300 * MS, start_ns=START + 650 * MS)
    run.process(S + spent)

    summary = summary_of(run)

    assert sum(one.sum_ns for one in summary.outside) == summary.outside_ns == S
    assert summary.outside[-1] == OutsideShare(name="untracked", sum_ns=600 * MS)


def test_steps_of_another_phase_are_part_of_the_section_around_them(tmp_path):
    """They are outside the steps of training like all else that a validation does."""
    run = RunFolderBuilder(tmp_path)
    run.step(0, 0, {"forward": 500 * MS})
    run.step(0, 550 * MS, {"forward": 200 * MS}, phase="validate")
    run.outside("report", 300 * MS, start_ns=START + 520 * MS, self_ns=10 * MS)
    run.outside("report/validate", 290 * MS, category="phase", self_ns=90 * MS)
    run.process(S)

    named = [one for one in summary_of(run).outside if one.count]

    assert named == [OutsideShare(name="report", sum_ns=300 * MS, count=1)]


def test_steps_of_another_phase_are_no_set_up(tmp_path):
    """Asked for the validation's steps: those of the training are told by themselves."""
    run = RunFolderBuilder(tmp_path)
    for n in range(3):
        run.step(n, 20 * MS + n * 30 * MS, {"forward": 20 * MS})
        run.step(n, 40 * MS + n * 30 * MS, {"forward": 10 * MS}, phase="validate")
    run.process(120 * MS)

    summary = summarize(read_run(run.write()), phase="validate")
    assert summary.outside == [
        OutsideShare(name="train steps", sum_ns=60 * MS, count=3),
        OutsideShare(name="set-up", sum_ns=20 * MS),
        OutsideShare(name="untracked", sum_ns=10 * MS),
    ]


def test_a_section_that_is_open_once_more_is_looked_into(tmp_path):
    """What has ended in the open call may be as long as the steps in the ended one."""
    run = RunFolderBuilder(tmp_path)
    run.step(0, 0, {"forward": 500 * MS})
    run.outside("fit", 600 * MS, self_ns=100 * MS)
    run.outside("fit/save", 700 * MS, start_ns=START + 600 * MS, count=7)
    run.process(2 * S, outcome="running")

    named = [one for one in summary_of(run).outside if one.count]

    assert named == [OutsideShare(name="save", sum_ns=700 * MS, count=7)]


def test_a_forked_child_takes_in_nothing_of_a_section_that_is_still_open(tmp_path):
    """It calls by the same name what has not ended in the process itself."""
    run = RunFolderBuilder(tmp_path)
    run.step(0, 0, {"forward": 500 * MS})
    run.outside("load", 100 * MS, beside=True)
    run.outside("load/read", 300 * MS, start_ns=START + 600 * MS)
    run.process(2 * S, outcome="running")

    named = [one for one in summary_of(run).outside if one.count]

    assert named == [OutsideShare(name="read", sum_ns=300 * MS, count=1)]


def test_what_is_inside_a_named_section_is_not_counted_twice(tmp_path):
    """A validation's own sections are in its time already; flushes of one path add up."""
    run = RunFolderBuilder(tmp_path)
    run.step(0, 0, {"forward": 100 * MS})
    for _ in range(2):
        run.outside("train.epoch/validate", 150 * MS, self_ns=100 * MS, start_ns=START + S)
        run.outside("train.epoch/validate/metrics", 50 * MS, start_ns=START + S)
    run.process(S)

    named = [one for one in summary_of(run).outside if one.count]

    assert named == [OutsideShare(name="validate", sum_ns=300 * MS, count=2)]


def test_a_run_without_steps_is_a_tree_of_its_sections(tmp_path):
    """Self and total of each, those inside below, and what is in none last."""
    run = RunFolderBuilder(tmp_path)
    run.outside("load", 300 * MS, self_ns=100 * MS, count=2)
    run.outside("load/decode", 200 * MS, count=50, start_ns=START + 1)
    run.outside("fit", 400 * MS, start_ns=START + 300 * MS)
    run.outside("watch", 900 * MS, beside=True)
    run.process(S)

    summary = summary_of(run)

    assert summary.steps is None
    assert [
        (one.name, one.depth, one.count, one.sum_ns / MS, one.self_ns / MS, one.share, one.beside)
        for one in summary.tree
    ] == [
        ("load", 0, 2, 300, 100, 0.1, False),
        ("decode", 1, 50, 200, 200, 0.2, False),
        ("fit", 0, 1, 400, 400, 0.4, False),
        ("watch", 0, 1, 900, 900, 0.9, True),
        ("untracked", 0, 0, 300, 300, 0.3, False),
    ]


def test_a_section_that_is_still_open_is_in_the_tree_with_what_has_ended_in_it(tmp_path):
    """Its children are rows already, it is not."""
    run = RunFolderBuilder(tmp_path)
    run.outside("fit/part", 100 * MS)
    run.outside("fit/part", 100 * MS)
    run.process(outcome="running")

    tree = summary_of(run).tree

    assert [(one.name, one.depth, one.sum_ns / MS) for one in tree][:2] == [
        ("fit", 0, 200),
        ("part", 1, 200),
    ]


def test_a_name_with_a_slash_stays_whole(tmp_path):
    """The path is cut by the name that is known, not at every slash."""
    run = RunFolderBuilder(tmp_path)
    run.outside("fit", 300 * MS, self_ns=200 * MS)
    run.section(None, "a/b", 100 * MS, path="fit/a/b")
    run.process(S)

    assert [(one.name, one.depth) for one in summary_of(run).tree][:2] == [("fit", 0), ("a/b", 1)]


def test_section_that_nobody_closed_is_marked(tmp_path):
    """It ends with its process; in the row that it has, and in a line of its own."""
    run = RunFolderBuilder(tmp_path)
    run.step(0, 0, {"forward": 50 * MS})
    run.outside("open", 40 * MS, start_ns=START + 60 * MS)
    run.outside("closed", 30 * MS, start_ns=START + 60 * MS)
    run.process(100 * MS)
    summary = summary_of(run)

    assert summary.left_open == ["open"]
    lines = "\n".join(closing_lines(summary))
    assert "open 40.0 ms (never closed)" in lines
    assert "never closed: open" in lines


def test_section_that_a_kill_interrupted_is_not_marked(tmp_path):
    """It had no time to be closed."""
    run = RunFolderBuilder(tmp_path)
    run.outside("open", 40 * MS, start_ns=START + 60 * MS)
    run.process(100 * MS, "killed")

    assert summary_of(run).left_open == []
