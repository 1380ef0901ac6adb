"""The ledger sums to the run's wall time, with nothing guessed."""

from __future__ import annotations

import pytest
from run_folders import MS, START, RunFolderBuilder, S, digits
from summaries import summary_of

from otel_mlperf import names
from otel_mlperf.report.summary_table import render_summary


def ledger_of(run):
    """The ledger of a folder that is being built: it always adds up, rank by rank."""
    ledger = summary_of(run).ledger
    for rank in ledger.ranks:
        assert sum(rank.spent_ns.values()) == ledger.wall_ns
        assert min(rank.spent_ns.values()) >= 0
    assert sum(ledger.spent_ns.values()) == ledger.wall_ns * len(ledger.ranks)
    return ledger


def known(spent):
    """What is not zero, in milliseconds."""
    return {kind: ns / MS for kind, ns in spent.items() if ns}


def reading(run, metric, value, rank=0, restart=0):
    run.row(
        "readings", rank=rank, restart=restart, name=metric.name, labels="{}",
        time_ns=START + S, value=value,
    )  # fmt: skip


def test_plain_run(tmp_path):
    """Waits are no training, checkpoints and validation inside the epoch are their own."""
    run = digits(tmp_path)
    reading(run, names.RUN_IMPORTS, 0.5)
    ledger = ledger_of(run)

    waits = sum(95 if n == 23 else 14 + n // 10 * 0 + n / 10 for n in range(40))
    worked = sum((300 if n == 0 else 11) + 16 + 4 + 2 for n in range(40))
    end = run.steps[-1]["end_ns"] - START + 150 * MS + 20 * MS
    assert ledger.wall_ns == end + 500 * MS
    assert known(ledger.spent_ns) == pytest.approx({
        "train": worked, "data wait": waits, "validation": 220, "checkpoint": 80, "imports": 500,
        "set-up": 400, "other": 20,
    })  # fmt: skip
    assert ledger.goodput == pytest.approx(worked / (ledger.wall_ns / MS))


def test_what_was_made_again_after_a_restart_is_lost(tmp_path):
    """Killed after step 5, gone on from step 4: two steps lost, and the time in between."""
    run = RunFolderBuilder(tmp_path)
    for n in range(6):
        run.step(n, 100 * MS + n * 10 * MS, {"forward": 8 * MS, "data.load": 2 * MS})
    run.span(6, "train.step", 160 * MS, 7 * MS, interrupted=True, category="step")
    run.process(170 * MS, outcome="killed")
    for n in range(4):
        run.step(n, 500 * MS + n * 10 * MS, {"forward": 10 * MS}, restart=1, number=n + 4)
    run.section(None, "checkpoint.load", 30 * MS, path="checkpoint.load", restart=1,
                category="checkpoint", start_ns=START + 450 * MS)  # fmt: skip
    run.process(560 * MS, restart=1, pid=101, start_ns=START + 400 * MS)
    ledger = ledger_of(run)

    assert ledger.lost_steps == 2
    assert known(ledger.spent_ns) == {
        "train": 4 * 8 + 4 * 10, "data wait": 8, "lost work": 2 * 10 + 7, "restart": 230,
        "checkpoint": 30, "set-up": 100 + 70, "other": 3 + 20,
    }  # fmt: skip


def test_program_that_starts_its_first_rank_itself_loses_nothing(tmp_path):
    """Both have one number and one time: it is one life, from the first begin to the last end."""
    run = RunFolderBuilder(tmp_path)
    for n in range(4):
        run.step(n, 200 * MS + n * 10 * MS, {"forward": 10 * MS})
    run.process(500 * MS, pid=1)
    run.process(300 * MS, pid=2, start_ns=START + 100 * MS)
    ledger = ledger_of(run)

    assert ledger.lost_steps == 0
    assert known(ledger.spent_ns) == {"train": 40, "set-up": 200, "other": 260}


def test_restart_that_counts_from_zero_after_a_checkpoint_loses_nothing_known(tmp_path):
    """Its numbers are not those of before: which steps were made again nobody can know."""
    run = RunFolderBuilder(tmp_path)
    run.step(0, 0, {"forward": 10 * MS})
    run.process(10 * MS, outcome="killed")
    run.section(None, "checkpoint.load", 5 * MS, path="checkpoint.load", restart=1,
                category="checkpoint", start_ns=START + 20 * MS)  # fmt: skip
    run.step(0, 25 * MS, {"forward": 10 * MS}, restart=1)
    run.process(40 * MS, restart=1, start_ns=START + 20 * MS)
    ledger = ledger_of(run)

    assert (ledger.lost_steps, ledger.spent_ns["lost work"]) == (0, 0)
    assert ledger.spent_ns["train"] == 20 * MS


def test_failed_step_is_lost_work(tmp_path):
    """It changed nothing; the steps before it count."""
    run = RunFolderBuilder(tmp_path)
    run.step(0, 0, {"forward": 10 * MS})
    run.step(1, 10 * MS, {"forward": 4 * MS}, error=True)
    run.process(20 * MS, outcome="failed")
    ledger = ledger_of(run)

    assert known(ledger.spent_ns) == {"train": 10, "lost work": 4, "other": 6}


def test_rank_that_came_late_and_left_early_was_idle(tmp_path):
    """Two ranks: each adds up to the wall time of the run."""
    run = RunFolderBuilder(tmp_path)
    for rank, (start, end) in enumerate([(0, 100), (30, 80)]):
        run.step(0, start * MS + 10 * MS, {"forward": 20 * MS}, rank=rank)
        run.process(end * MS, rank=rank, world_size=2, start_ns=START + start * MS)
    ledger = ledger_of(run)

    assert ledger.wall_ns == 100 * MS
    assert known(ledger.ranks[0].spent_ns) == {"train": 20, "set-up": 10, "other": 70}
    assert known(ledger.ranks[1].spent_ns) == {"train": 20, "set-up": 10, "idle": 50, "other": 20}
    assert ledger.goodput == 0.2


def test_more_told_than_there_was_time_for_adds_up_all_the_same(tmp_path):
    """Sections that overlap, or a clock that was set: the vaguest kinds give way."""
    run = RunFolderBuilder(tmp_path)
    run.step(0, 0, {"forward": 50 * MS})
    run.outside("whatever", 40 * MS, start_ns=START + 50 * MS)
    run.outside("checkpoint", 20 * MS, start_ns=START + 50 * MS)
    run.process(60 * MS)
    ledger = ledger_of(run)

    assert known(ledger.spent_ns) == {"train": 50, "checkpoint": 10}


def test_line_of_the_summary(tmp_path):
    """Goodput first, then all kinds, the largest first."""
    run = RunFolderBuilder(tmp_path)
    run.step(0, 20 * MS, {"forward": 60 * MS})
    run.process(100 * MS)

    assert "goodput   60 % of 100 ms: train 60 %, set-up 20 %, other 20 %\n" in render_summary(
        summary_of(run)
    )


def test_compilation_is_apart_wherever_it_happened(tmp_path):
    """In a training step, in a validation and before the first step; in a failed one it is lost."""
    run = RunFolderBuilder(tmp_path)
    run.section(None, "compile", 20 * MS, path="compile", category="compile", start_ns=START)
    for n, phase, error in ((0, "train", False), (1, "validate", False), (2, "train", True)):
        run.step(n, 50 * MS + n * 10 * MS, {"forward": 4 * MS, "compile": 6 * MS}, phase=phase,
                 error=error)  # fmt: skip
    run.process(100 * MS)
    ledger = ledger_of(run)

    assert known(ledger.spent_ns) == {
        "train": 4, "validation": 4, "compile": 20 + 6 + 6, "lost work": 10, "set-up": 30,
        "other": 20,
    }  # fmt: skip
