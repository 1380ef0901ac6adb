"""A run that is read some steps at a time equals one that is read at once."""

from __future__ import annotations

import random

import pytest
from run_folders import MS, START, RunFolderBuilder, S

from otel_mlperf.analysis.findings.finding_sources import judge_run
from otel_mlperf.analysis.findings.rank_steps import read_rank_steps
from otel_mlperf.analysis.findings.run_numbers import RunNumbers
from otel_mlperf.analysis.steps import step_ranges
from otel_mlperf.store.run_folders import read_run
from otel_mlperf.store.table_reader import Store

STEPS = 70


@pytest.fixture
def run(tmp_path):
    """Two ranks and a restart, with what happens in some steps, fails, and is beside the others."""
    builder = RunFolderBuilder(tmp_path, world_size=2)
    by_chance = random.Random(7)
    for rank, restart, steps in ((0, 0, 40), (0, 1, STEPS), (1, 0, STEPS)):
        builder.process(9 * S, rank=rank, restart=restart, world_size=2)
        at = 0
        for n in range(steps):
            sections = {"data.load": by_chance.randrange(1, 4) * MS, "forward": 5 * MS + n}
            sections["all_reduce"] = by_chance.randrange(1, 9) * MS
            if n % 7 == 0:
                sections["validate"] = by_chance.randrange(1, 90) * MS
            about = {"rank": rank, "restart": restart, "error": n == 33}
            builder.step(n, at, sections, own=MS, samples=8, **about)
            builder.section(
                builder.steps[-1], "prefetch", 2 * MS, beside=True, start_ns=START + at + MS
            )
            at += sum(sections.values()) + MS
    return read_run(builder.write())


def told(run):
    """All that is said of the run, and the series behind it."""
    store = Store(run.path)
    summary = judge_run(run, store=store)
    numbers = RunNumbers(summary, store)
    series = [(one.name, one.category, one.own_ns.tolist()) for one in numbers.sections]
    return summary, series, read_rank_steps(numbers)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rows", [1, 50, 333])
def test_pieces_make_the_same_whole(run, monkeypatch, rows):
    """Whatever number of rows is read at once: figures, shares, ranks, waits and series."""
    at_once = told(run)
    pieces = list(step_ranges.step_ranges(Store(run.path)))
    monkeypatch.setattr(step_ranges, "PIECE_ROWS", rows)

    assert len(pieces) == 1
    assert len(list(step_ranges.step_ranges(Store(run.path)))) > 1
    assert told(run) == at_once
    assert len(at_once[1]) == 4
    assert all(one.waited_ns and one.samples for one in at_once[2])


def test_ranges_have_each_step_once(run, monkeypatch):
    """From the first that is asked for to the last, in order and without a gap."""
    monkeypatch.setattr(step_ranges, "PIECE_ROWS", 60)
    ranges = list(step_ranges.step_ranges(Store(run.path), 1))

    assert [n for low, high in ranges for n in range(low, high)][: STEPS - 1] == [*range(1, STEPS)]


def test_run_without_steps_has_no_range(tmp_path):
    """Nor one that is empty."""
    builder = RunFolderBuilder(tmp_path)
    builder.process(S)

    assert list(step_ranges.step_ranges(Store(builder.write()))) == []
