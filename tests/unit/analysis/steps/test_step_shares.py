"""The figures of the usual step are exact, and cover the right steps."""

from __future__ import annotations

import pytest
from run_folders import MS, START, RunFolderBuilder, S, digits
from summaries import rows_of, summary_of, train

from otel_mlperf.analysis.steps.step_shapes import WarmUp
from otel_mlperf.analysis.summary.summary_shapes import OutsideShare
from otel_mlperf.report.summary_notes import closing_lines


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


def test_steps_that_took_no_samples_count_in_the_rate(tmp_path):
    """Six updates of one batch of 30 samples take 600 ms: 50 a second, of all ranks that step."""
    run = RunFolderBuilder(tmp_path)
    for rank in (0, 1):
        for n in range(12):
            samples = 30 if n % 6 == 0 and rank == 0 else None
            run.step(n, n * 100 * MS, {"forward": 100 * MS}, rank=rank, samples=samples)
        run.process(2 * S, rank=rank)

    assert summary_of(run).steps.samples_per_s == pytest.approx(50.0)


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
    assert rows_of(summary) == [("forward", 20.0), ("untracked", 0.0)]
    assert summary.slowest.rank == 1


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
        OutsideShare(name="untracked", sum_ns=20 * MS),
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

    assert rows_of(summary) == [("forward", 10.0), ("untracked", 5.0)]
    assert rows_of(summary, beside=True) == [("prefetch", 12.0)]


def test_aggregated_sections_are_rows_of_their_steps(tmp_path):
    """Of the steps that the figures are about, with a p95; their totals are those of the run."""
    run = RunFolderBuilder(tmp_path)
    for n in range(4):
        run.step(n, n * 200 * MS, {"forward": 5 * MS if n else 90 * MS}, own=3 * MS)
        step, begin = run.steps[n], START + n * 200 * MS
        for name, spent, parent in (("attention", 5, "forward"), ("hook", 2, "train.step")):
            step["duration_ns"] += spent * MS
            run.section(
                step, name, spent * MS, aggregate=True, parent=parent, count=10,
                start_ns=begin + spent * MS,
            )  # fmt: skip
    run.process(S)

    summary = summary_of(run)

    assert rows_of(summary) == [
        ("forward", 5.0),
        ("hook", 2.0),
        ("attention", 5.0),
        ("untracked", 3.0),
    ]
    assert [(row.aggregate, row.p95_ns) for row in summary.steps.rows] == [
        (False, 5 * MS), (True, 2 * MS), (True, 5 * MS), (False, 3 * MS),
    ]  # fmt: skip
    assert [(a.name, a.enclosing, a.count, a.sum_ns) for a in summary.aggregates] == [
        ("attention", "forward", 40, 20 * MS),
        ("hook", "train.step", 40, 8 * MS),
    ]


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
    assert "slowest   step 1: 9.00 ms, not sampled (sampled: step 4) · forward 9.00 ms" in lines
    assert summary.next == "otel-mlperf show 3f2a --step 4"
    assert "profiled  1 window, 2 steps of the table above · otel-mlperf kernels 3f2a" in lines
    assert "          2 windows skipped: another profiler was running" in lines


def test_slowest_of_profiled_steps_alone_is_marked(tmp_path):
    """There is nothing else to compare with."""
    run = RunFolderBuilder(tmp_path)
    run.step(0, 0, {"forward": 5 * MS}, kept="profiled")
    run.process(S)

    assert "slowest   step 0: 5.00 ms, profiled · forward 5.00 ms" in closing_lines(summary_of(run))


def with_collection(runs, waited=100 * MS, collected=1900 * MS, **fields):
    """Ten steps of 20 ms, and in one of them a collection while it waited for data."""
    run = RunFolderBuilder(runs)
    for n in range(11):
        run.step(n, n * 20 * MS, {"data.load": 5 * MS, "forward": 15 * MS})
    run.step(11, S, {"data.load": waited, "forward": 15 * MS}, own=5 * MS, duration_ns=20 * MS
             + waited + collected)  # fmt: skip
    inside = {"parent": "data.load"} | fields
    run.section(run.steps[-1], "gc.collect", collected, **inside)
    run.process(10 * S)
    return run


def test_a_collection_of_garbage_has_a_row_that_says_where_it_fell(tmp_path):
    """Beside the wait for data that it prolonged; the rows still add up."""
    steps = summary_of(with_collection(tmp_path)).steps

    (row,) = [row for row in steps.rows if row.category == "garbage_collection"]
    assert (row.name, row.inside) == ("garbage collection", "data wait")
    assert row.mean_ns == pytest.approx(1900 * MS / 12)
    assert sum(row.mean_ns for row in steps.rows) == pytest.approx(steps.mean_ns)
    assert {row.inside for row in steps.rows} == {"", "data wait"}


@pytest.mark.parametrize(
    ("waited", "fields", "told"),
    [
        (100, {}, "2.02 s, not sampled · garbage collection 1.90 s in data wait"),
        (2000, {}, "data wait 2.00 s, garbage collection 1.90 s in data wait"),
        (1000, {"parent": "train.step"}, " · garbage collection 1.90 s in the step itself"),
        (2000, {"beside": True}, " · data wait 2.00 s, garbage collection 1.90 s"),
    ],
)
def test_the_slowest_step_names_its_collection(tmp_path, waited, fields, told):
    """As what took longest, or beside that; and where it fell, if it was on the step's thread."""
    summary = summary_of(with_collection(tmp_path, waited * MS, **fields))

    assert (summary.slowest.number, summary.slowest.collection_ns) == (11, 1900 * MS)
    (line,) = [line for line in closing_lines(summary) if line.startswith("slowest")]
    assert line.endswith(told)


def test_a_collection_that_hardly_counts_is_not_told_of_the_slowest_step(tmp_path):
    """It has its row all the same."""
    summary = summary_of(with_collection(tmp_path, 2000 * MS, MS))

    (line,) = [line for line in closing_lines(summary) if line.startswith("slowest")]
    assert line.endswith(" · data wait 2.00 s")
    assert summary.slowest.collection_ns == MS
