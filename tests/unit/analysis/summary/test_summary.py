"""A summary reports exactly what the tables contain."""

from __future__ import annotations

import pytest
from run_folders import MS, START, RunFolderBuilder, S, digits
from summaries import summary_of, train

from otel_mlperf.analysis.steps.step_shapes import Slowest, WarmUp
from otel_mlperf.analysis.summary.summary import summarize
from otel_mlperf.analysis.summary.summary_shapes import (
    AsOf,
    OutsideShare,
    Summary,
    Telemetry,
    no_summary,
)
from otel_mlperf.errors import NoSuchRun
from otel_mlperf.journal.profiler_windows import Window, write_window
from otel_mlperf.report.summary_notes import closing_lines
from otel_mlperf.store.parts import write_as_of
from otel_mlperf.store.run_folders import read_run


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
        ("untracked", 2_000_000, 2_000_000),
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
        OutsideShare(name="untracked", sum_ns=20 * MS),
    ]
    assert summary.result == {"accuracy": 0.9833}
    assert summary.next == "otel-mlperf show 3f2a --step 23"


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
    with pytest.raises(NoSuchRun, match=r"looking for rank 7 of run 3f2a: the run has ranks 0, 1$"):
        summarize(folder, 7)


@pytest.mark.fault("F26")
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


def test_a_run_that_has_just_begun_can_be_summarized(tmp_path):
    """Before the agent has written anything, and after its first rows."""
    empty = summary_of(RunFolderBuilder(tmp_path / "a"))
    run = RunFolderBuilder(tmp_path / "b")
    run.process(outcome="running")
    run.step(0, S, {"forward": MS})
    begun = summary_of(run)

    assert (empty.outcome, empty.duration_ns, empty.telemetry.lost) == ("running", 0, None)
    assert (begun.outcome, begun.duration_ns) == ("running", S + MS)


def test_a_run_that_goes_on_is_told_of_up_to_a_moment(tmp_path):
    """That of the host which stored last, and the last step of the rank that is behind."""
    run = RunFolderBuilder(tmp_path)
    for rank, last in ((0, 7), (1, 5)):
        run.process(outcome="running", rank=rank, host=f"node{rank + 1}")
        for n in range(last + 1):
            run.step(n, n * MS, {"forward": MS}, rank=rank)
    folder = read_run(run.write())
    write_as_of(folder.path, "node1", START + 9 * S)
    of_one_host = summarize(folder).as_of
    write_as_of(folder.path, "node2", START + 8 * S)

    assert of_one_host is None
    assert summarize(folder).as_of == AsOf(time_ns=START + 8 * S, step=5)
    assert summarize(folder, 0).as_of == AsOf(time_ns=START + 9 * S, step=7)


def test_a_run_that_has_ended_is_told_of_to_its_end(tmp_path):
    """Whenever its tables were written."""
    ended, stepless = digits(tmp_path / "a"), RunFolderBuilder(tmp_path / "b")
    stepless.process(S)

    assert summary_of(ended).as_of == AsOf(time_ns=ended.steps[-1]["end_ns"] + 170 * MS, step=39)
    assert summary_of(stepless).as_of == AsOf(time_ns=START + S, step=None)


def test_a_summary_of_nothing_has_every_field():
    """Also those inside: whoever looks one up finds it, without content."""
    nothing = no_summary(name="x", missing=["why"])

    assert [*nothing] == ["schema", *Summary.__struct_fields__]
    assert (nothing["name"], nothing["missing"], nothing["tree"]) == ("x", ["why"], [])
    assert nothing["telemetry"] == dict.fromkeys(Telemetry.__struct_fields__)
    assert {nothing[field] for field in ("id", "steps", "duration_ns", "as_of")} == {None}


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


def test_the_next_command_of_a_run_without_steps_shows_what_was_profiled(tmp_path):
    """Calls that the program had profiled, as nothing else is to be shown."""
    run = RunFolderBuilder(tmp_path)
    run.outside("search", S)
    run.process(2 * S)
    run.profiled("search")

    assert summary_of(run).next == "otel-mlperf summary 3f2a --functions"
