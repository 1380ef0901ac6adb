"""Does a summary say exactly what the tables hold?"""

from __future__ import annotations

import json

import pytest
from run_folders import MS, START, RunFolderBuilder, S, digits

from otel_mlperf.analysis.steps.step_shapes import Slowest, WarmUp
from otel_mlperf.analysis.summary.summary import summarize
from otel_mlperf.analysis.summary.summary_shapes import OutsideShare
from otel_mlperf.errors import NoSuchRun
from otel_mlperf.journal.window import Window, write_window
from otel_mlperf.report.summary_notes import closing_lines
from otel_mlperf.store.run_folders import read_run


def summary_of(run):
    """The summary of a folder that is being built."""
    return summarize(read_run(run.write()))


def rows_of(summary, *, beside=False):
    """Name and mean of each row, in milliseconds."""
    return [
        (row.name, round(row.mean_ns / MS, 6)) for row in summary.steps.rows if row.beside is beside
    ]


def train(run, durations_ms, **fields):
    """Steps of one section each, back to back."""
    at = 0
    for n, spent in enumerate(durations_ms):
        run.step(n, at, {"forward": int(spent * MS)}, **fields)
        at += int(spent * MS)


def test_a_run_with_steps(tmp_path):
    """Header, figures, rows, warm-up, outside time, the slowest step, telemetry."""
    summary = summary_of(digits(tmp_path))

    steps = summary.steps
    assert (summary.outcome, summary.ranks, summary.nodes) == ("finished", 1, 1)
    assert (steps.phase, steps.count, steps.p50_ns, steps.p95_ns) == (
        "train",
        40,
        49_000_000,
        50_900_000,
    )
    assert [(row.name, round(row.mean_ns), row.p95_ns) for row in steps.rows] == [
        ("data wait", 18_017_949, 17_900_000),
        ("forward", 11_000_000, 11_000_000),
        ("backward", 16_000_000, 16_000_000),
        ("optimizer", 4_000_000, 4_000_000),
        ("not in a span", 2_000_000, 2_000_000),
    ]
    assert summary.warm_up == WarmUp(number=0, duration_ns=336 * MS)
    assert summary.slowest == Slowest(
        number=23,
        rank=0,
        duration_ns=128 * MS,
        section="data wait",
        section_ns=95 * MS,
        kept=True,
        profiled=False,
        kept_number=23,
    )
    assert summary.outside == [
        OutsideShare(name="load_data", sum_ns=250 * MS, count=1),
        OutsideShare(name="validate", sum_ns=220 * MS, count=2),
        OutsideShare(name="set-up", sum_ns=150 * MS),
        OutsideShare(name="checkpoint", sum_ns=80 * MS, count=2),
        OutsideShare(name="not in a span", sum_ns=20 * MS),
    ]
    assert summary.result == {"accuracy": 0.9833}
    assert summary.next == "otel-mlperf show 3f2a --step 23"


def test_rows_add_up_to_the_mean_step_and_outside_to_the_rest_of_the_run(tmp_path):
    """No time is lost between the lines of the closing text."""
    summary = summary_of(digits(tmp_path))

    steps = summary.steps
    assert sum(row.mean_ns for row in steps.rows) == pytest.approx(steps.mean_ns)
    assert sum(row.share for row in steps.rows) == pytest.approx(1.0)
    assert sum(one.sum_ns for one in summary.outside) == pytest.approx(summary.outside_ns)
    in_steps = 39 * steps.mean_ns + summary.warm_up.duration_ns
    assert summary.outside_ns + in_steps == pytest.approx(summary.duration_ns)


def test_samples_and_tokens_are_rates_over_all_ranks(tmp_path):
    """Two ranks that step together in 100 ms with 32 samples each do 640 a second."""
    run = RunFolderBuilder(tmp_path)
    for rank in (0, 1):
        train(run, [100] * 4, rank=rank, samples=32, tokens=1000)
        run.process(S, rank=rank)

    steps = summary_of(run).steps

    assert (steps.samples_per_s, steps.tokens_per_s) == (640.0, 20_000.0)


def test_steps_of_several_ranks_are_counted_once_and_timed_all(tmp_path):
    """The count is that of one rank; mean and p95 are over every rank's step."""
    run = RunFolderBuilder(tmp_path)
    train(run, [10] * 20, rank=0)
    train(run, [30] * 20, rank=1)
    run.process(S, rank=0)
    run.process(S, rank=1, host="node2")

    summary = summary_of(run)

    assert (summary.ranks, summary.nodes, summary.steps.count) == (2, 2, 20)
    assert (summary.steps.mean_ns, summary.steps.p95_ns) == (20 * MS, 30 * MS)
    assert rows_of(summary) == [("forward", 20.0), ("not in a span", 0.0)]
    assert summary.slowest.rank == 1


def test_a_rank_that_is_slower_in_a_section_stands_out(tmp_path):
    """The one line that says which machine to look at; the table of all ranks is there too."""
    run = RunFolderBuilder(tmp_path, world_size=2)
    for rank, forward in ((0, 20), (1, 30)):
        for n in range(4):
            run.step(
                n, n * 50 * MS, {"forward": forward * MS, "backward": 10 * MS}, own=MS, rank=rank
            )
        run.process(S, rank=rank)

    steps = summary_of(run).steps

    assert [(one.rank, one.more_ns) for one in steps.stand_outs] == [(1, {"forward": 10.0 * MS})]
    assert [(one.rank, one.count, one.mean_ns, one.sections) for one in steps.ranks] == [
        (0, 4, 31.0 * MS, {"forward": 20 * MS, "backward": 10 * MS, "not in a span": MS}),
        (1, 4, 41.0 * MS, {"forward": 30 * MS, "backward": 10 * MS, "not in a span": MS}),
    ]


def test_figures_can_be_of_one_rank(tmp_path):
    """As if the others had not been there."""
    run = RunFolderBuilder(tmp_path, world_size=2)
    train(run, [10] * 5, rank=0)
    train(run, [30] * 5, rank=1)
    run.process(S, rank=0)
    run.process(S, rank=1)
    folder = read_run(run.write())

    summary = summarize(folder, 1)

    assert (summary.rank, summary.ranks, summary.steps.mean_ns) == (1, 1, 30 * MS)
    with pytest.raises(NoSuchRun, match=r"looking for rank 7 of run 3f2a: its ranks are 0, 1$"):
        summarize(folder, 7)


def test_a_restarted_run_counts_the_steps_of_each_start(tmp_path):
    """Numbers begin again after a restart; the steps were done all the same."""
    run = RunFolderBuilder(tmp_path)
    train(run, [10] * 5)
    train(run, [10] * 3, restart=1)
    run.process(S // 2, "failed", restart=0, error_type="OSError")
    run.process(S, restart=1)

    summary = summary_of(run)

    assert summary.steps.count == 8
    assert (summary.outcome, summary.failure) == ("finished", None)


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
        OutsideShare(name="not in a span", sum_ns=10 * MS),
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

    assert rows_of(summary) == [("forward", 50.0), ("not in a span", 0.0)]
    assert summary.beside == [OutsideShare(name="load", sum_ns=300 * MS, count=10)]
    assert summary.outside == [
        OutsideShare(name="load", sum_ns=20 * MS, count=1),
        OutsideShare(name="set-up", sum_ns=20 * MS),
        OutsideShare(name="not in a span", sum_ns=10 * MS),
    ]
    assert "added up  decode ×1: 40.0 ms in child processes, mean 40.0 ms" in closing_lines(summary)


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


def test_the_train_phase_is_what_a_run_is_about(tmp_path):
    """Validation steps that came first are outside time."""
    run = RunFolderBuilder(tmp_path)
    run.step(0, 0, {"forward": 50 * MS}, phase="validate")
    run.step(0, 60 * MS, {"forward": 20 * MS})
    run.outside("validate", 55 * MS)
    run.process(100 * MS)

    summary = summary_of(run)

    assert (summary.steps.phase, summary.steps.count) == ("train", 1)
    assert summary.outside == [
        OutsideShare(name="validate", sum_ns=55 * MS, count=1),
        OutsideShare(name="set-up", sum_ns=5 * MS),
        OutsideShare(name="not in a span", sum_ns=20 * MS),
    ]


def test_without_training_the_first_phase_counts(tmp_path):
    """A run that only validates has figures too."""
    run = RunFolderBuilder(tmp_path)
    run.step(0, 0, {"forward": 50 * MS}, phase="validate")
    run.process(100 * MS)

    assert summary_of(run).steps.phase == "validate"


@pytest.mark.parametrize(
    ("durations", "is_warm_up"),
    [
        ([100, 10, 10], True),
        ([20, 10, 10], False),
        ([21, 10, 10], True),
        ([100, 10], False),
        ([100], False),
        ([10, 10, 100], False),
    ],
)
def test_a_first_step_over_twice_the_median_of_the_others_is_warm_up(
    tmp_path, durations, is_warm_up
):
    """Only the first, only if it is far longer, and only where others show what is usual."""
    run = RunFolderBuilder(tmp_path)
    train(run, durations)
    run.process(S)

    summary = summary_of(run)

    mean = sum(durations[is_warm_up:]) / len(durations[is_warm_up:])
    assert (summary.warm_up is not None) is is_warm_up
    assert summary.steps.mean_ns == pytest.approx(mean * MS)
    assert summary.steps.count == len(durations)


def test_warm_up_is_that_of_the_slowest_rank(tmp_path):
    """Every rank's first step is left out."""
    run = RunFolderBuilder(tmp_path)
    train(run, [100, 10, 10], rank=0)
    train(run, [300, 10, 10], rank=1)
    train(run, [200, 10, 10], rank=2)
    run.process(S)

    summary = summary_of(run)

    assert summary.warm_up == WarmUp(number=0, duration_ns=300 * MS)
    assert summary.steps.mean_ns == 10 * MS


def test_a_section_of_few_steps_counts_as_zero_in_the_others(tmp_path):
    """Mean and p95 are over all steps: 100 ms in one of 40 is 2.5 ms, and not the p95."""
    run = RunFolderBuilder(tmp_path)
    train(run, [10] * 40)
    run.steps[5]["duration_ns"] += 100 * MS
    run.section(run.steps[5], "evaluate", 100 * MS, start_ns=START + 60 * MS)
    run.process(S)

    row = summary_of(run).steps.rows[1]

    assert (row.name, row.mean_ns, row.p95_ns) == ("evaluate", 2.5 * MS, 0)


def test_p95_is_a_time_that_a_step_really_took(tmp_path):
    """The smallest that 95 of 100 steps do not pass."""
    run = RunFolderBuilder(tmp_path)
    train(run, range(1, 101))
    run.process(10 * S)

    steps = summary_of(run).steps

    assert (steps.p50_ns, steps.p95_ns, steps.rows[0].p95_ns) == (50 * MS, 95 * MS, 95 * MS)


def test_sections_of_other_threads_are_beside(tmp_path):
    """They run while the step goes on, and take nothing from it."""
    run = RunFolderBuilder(tmp_path)
    for n in range(3):
        run.step(n, n * 20 * MS, {"forward": 10 * MS}, own=5 * MS)
        run.section(run.steps[n], "prefetch", 12 * MS, beside=True)
    run.process(S)

    summary = summary_of(run)

    assert rows_of(summary) == [("forward", 10.0), ("not in a span", 5.0)]
    assert rows_of(summary, beside=True) == [("prefetch", 12.0)]


def test_aggregated_sections_are_taken_out_of_the_row_around_them(tmp_path):
    """Their run totals are listed, and the rows still add up to the step."""
    run = RunFolderBuilder(tmp_path)
    for n in range(4):
        run.step(n, n * 20 * MS, {"forward": 10 * MS}, own=5 * MS)
    one = {"aggregate": True, "phase": "train", "n": None}
    run.section(None, "attention", 16 * MS, parent="forward", count=900, **one)
    run.section(None, "attention", 4 * MS, parent="forward", count=100, **one)
    run.section(None, "hook", 8 * MS, parent="train.step", count=10, **one)
    run.process(S)

    summary = summary_of(run)

    assert rows_of(summary) == [
        ("forward", 5.0),
        ("attention", 5.0),
        ("hook", 2.0),
        ("not in a span", 3.0),
    ]
    assert [(a.name, a.enclosing, a.count, a.sum_ns) for a in summary.aggregates] == [
        ("attention", "forward", 1000, 20 * MS),
        ("hook", "train.step", 10, 8 * MS),
    ]


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
        OutsideShare(name="not in a span", sum_ns=200 * MS),
    ]


def test_what_is_inside_a_named_section_is_not_counted_twice(tmp_path):
    """A validation's own sections are in its time already; flushes of one path add up."""
    run = RunFolderBuilder(tmp_path)
    run.step(0, 0, {"forward": 100 * MS})
    for _ in range(2):
        run.outside("train.epoch/validate", 150 * MS, start_ns=START + S)
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
        ("not in a span", 0, 0, 300, 300, 0.3, False),
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


def test_a_run_that_has_just_begun_can_be_summarized(tmp_path):
    """Before the agent has written anything, and after its first rows."""
    empty = summary_of(RunFolderBuilder(tmp_path / "a"))
    run = RunFolderBuilder(tmp_path / "b")
    run.process(outcome="running")
    run.step(0, S, {"forward": MS})
    begun = summary_of(run)

    assert (empty.outcome, empty.duration_ns, empty.telemetry.lost) == ("running", 0, None)
    assert (begun.outcome, begun.duration_ns) == ("running", S + MS)


def count(run, name, labels, *values, rank=0, restart=0):
    """Readings of what the program counts, a second apart."""
    for at, value in enumerate(values):
        run.row(
            "readings", rank=rank, restart=restart, name=f"ml.user.{name}",
            labels=json.dumps(labels), time_ns=START + at * S, value=float(value),
        )  # fmt: skip


def test_what_was_counted_is_the_sum_over_labels_ranks_and_restarts(tmp_path):
    """Each label set by itself, too; a gauge is no sum but the last value that was set."""
    run = RunFolderBuilder(tmp_path)
    about = (("seen", "", "counter"), ("depth", "1", "gauge"), ("wait", "s", "histogram"))
    for name, unit, kind in about:
        run.row("instruments", rank=0, restart=0, name=f"ml.user.{name}", unit=unit, kind=kind)
    count(run, "seen", {"lang": "de"}, 1, 5)
    count(run, "seen", {"lang": "de"}, 2, 20, rank=1)
    count(run, "seen", {"lang": "de"}, 100, restart=1)
    count(run, "seen", {"lang": "en"}, 1000)
    count(run, "depth", {}, 9, 8, 3)
    count(run, "depth", {}, 70, rank=1)
    count(run, "wait.count", {}, 2, 4)
    count(run, "wait.sum", {}, 0.5, 1.5)
    count(run, "old.count", {}, 7)

    summary = summary_of(run)

    assert summary.counted == {"old.count": 7, "seen": 1125, "wait.count": 4, "wait.sum": 1.5}
    assert [(one.name, one.kind, one.labels, one.value, one.count) for one in summary.series] == [
        ("depth", "gauge", {}, 3, None),
        ("old.count", "counter", {}, 7, None),
        ("seen", "counter", {"lang": "de"}, 125, None),
        ("seen", "counter", {"lang": "en"}, 1000, None),
        ("wait", "histogram", {}, 1.5, 4),
    ]
    assert [one.unit for one in summary.series] == ["1", "", "", "", "s"]


def test_overhead_is_a_share_of_all_processes_lives(tmp_path):
    """9 ms of recording in two lives of one second are 0.45 %."""
    run = RunFolderBuilder(tmp_path)
    run.process(S, rank=0, overhead_ns=9 * MS)
    run.process(S, rank=1)

    assert summary_of(run).telemetry.overhead == 0.0045


def test_nothing_is_said_of_a_recording_that_there_was_none_of(tmp_path):
    """Traces that were imported lost nothing, and cost nothing."""
    run = RunFolderBuilder(tmp_path)
    run.process(S, "imported")

    summary = summary_of(run)

    assert (summary.telemetry.lost, summary.telemetry.overhead) == (None, None)
    assert f"telemetry stored in {run.path}" in closing_lines(summary)


@pytest.mark.parametrize(
    ("outcome", "step", "lost", "hint"),
    [
        ("finished", True, 0, "otel-mlperf show 3f2a --step 0"),
        ("failed", True, 0, "otel-mlperf show 3f2a --step 7"),
        ("finished", True, 3, "otel-mlperf doctor 3f2a"),
        ("running", False, 0, "otel-mlperf summary 3f2a"),
        ("finished", False, 0, "otel-mlperf doctor 3f2a"),
    ],
)
def test_next_is_the_command_that_says_more(tmp_path, outcome, step, lost, hint):
    """A loss before a failure before the slowest step."""
    run = RunFolderBuilder(tmp_path)
    if step:
        run.step(0, 0, {"forward": MS})
    run.process(0 if outcome == "running" else S, outcome, error_step=7)
    run.accounting(spans={"store": {"created": lost, "lost": {"ring_full": lost}}})

    assert summary_of(run).next == hint


def test_a_step_cut_short_by_an_error_is_counted_but_not_averaged(tmp_path):
    """Ctrl-C in a long step must not bend the figures of the steps before it."""
    run = RunFolderBuilder(tmp_path)
    train(run, [10] * 20 + [1000])
    run.steps[-1]["error"] = True
    run.process(S)

    steps = summary_of(run).steps

    assert (steps.count, steps.mean_ns) == (21, 10 * MS)


def test_profiled_steps_are_not_the_slowest_but_for_want_of_others(tmp_path):
    """A profiler makes them slow; that the figures contain them is said."""
    run = RunFolderBuilder(tmp_path)
    kept = ["first", None, "profiled", "profiled", "every"]
    for n, (spent, why) in enumerate(zip((5, 9, 40, 50, 6), kept, strict=True)):
        run.step(n, n * 100 * MS, {"forward": spent * MS}, kept=why)
    run.step(0, 900 * MS, {"forward": 30 * MS}, kept="profiled", phase="validate")
    run.process(S)
    run.row(
        "windows", rank=0, restart=0, digest="a", number=0, trace="a", start_ns=START,
        end_ns=START + MS, is_unix_time=True, steps="[]", categories="{}", orphans="{}",
        damage="[]",
    )  # fmt: skip
    run.row(
        "readings", rank=0, restart=0, name="otel_mlperf.profile.skipped.busy", labels="{}",
        time_ns=START, value=2.0,
    )  # fmt: skip
    summary = summary_of(run)
    lines = closing_lines(summary)

    assert (summary.slowest.number, summary.slowest.profiled) == (1, False)
    assert "slowest   step 1, 9.00 ms (not kept): forward 9.0" in lines
    assert summary.next == "otel-mlperf show 3f2a --step 4"
    assert "profiled  1 window, 2 of the steps above · otel-mlperf kernels 3f2a" in lines
    assert "          2 windows left out: another profiler was running" in lines


def test_slowest_of_profiled_steps_alone_is_marked(tmp_path):
    """There is nothing else to compare with."""
    run = RunFolderBuilder(tmp_path)
    run.step(0, 0, {"forward": 5 * MS}, kept="profiled")
    run.process(S)

    assert "slowest   step 0, 5.00 ms (profiled): forward 5.0" in closing_lines(summary_of(run))


def test_profiler_windows_are_counted_converted_or_not(tmp_path):
    """Those in the tables, imported ones too, and those that nobody has read yet."""
    run = digits(tmp_path)
    for rank, number, trace in (
        (0, 0, "rank0.0.pt.trace.json"),
        (0, None, "elsewhere.json.gz"),
        (3, None, "rank0.1.pt.trace.json"),
    ):
        run.row(
            "windows", rank=rank, restart=0, digest=trace, number=number, trace=trace,
            start_ns=START, end_ns=START + MS, is_unix_time=True, steps="[]", categories="{}",
            orphans="{}", damage="[]",
        )  # fmt: skip
    folder = run.write() / "profiles"
    folder.mkdir()
    for number in (0, 1):
        window = Window(
            run_id="r", restart=0, rank=0, world_size=2, pid=1, number=number,
            trace=f"rank0.{number}.pt.trace.json", parent="", steps=[], start=(0, 0), end=(0, 0),
            activities=["cpu"],
        )  # fmt: skip
        write_window(folder, window)
    found = read_run(folder.parent)

    assert (summarize(found).windows, summarize(found, rank=0).windows) == (4, 3)
    assert "profiled  4 windows · otel-mlperf kernels 3f2a" in closing_lines(summarize(found))
