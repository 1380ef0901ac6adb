"""The rank that delays the others is named, and none that waits for it."""

from __future__ import annotations

import pytest
from run_folders import MS, START, RunFolderBuilder

from otel_mlperf import names
from otel_mlperf.analysis.findings.finding_sources import judge_run
from otel_mlperf.findings.finding import Gain, Where
from otel_mlperf.store.run_folders import read_run

_OF_THREAD = (names.CGROUP_CPU_LIMIT, names.MAIN_THREAD_CPU_TIME, names.MAIN_THREAD_RUN_DELAY)


def judged(runs, *ranks, rank=None, ddp=False, threads=()):
    """A run of ten steps or more on each rank, with the sections that it is given.

    Of the main thread of each rank what it ran, and had no CPU, as shares of the time.
    """
    run, count = RunFolderBuilder(runs), 200 if threads else 10
    for number, parts in enumerate(ranks):
        spent = sum(parts.values())
        for n in range(count):
            sections = {name: ms * MS for name, ms in parts.items()}
            run.step(n, n * spent * MS, sections, rank=number)
        run.process(count * spent * MS, rank=number, world_size=len(ranks))
        if ddp:
            run.row(
                "readings", rank=number, restart=0, name=names.DDP_BUCKETS.name, labels="{}",
                time_ns=START + MS, value=2.0,
            )  # fmt: skip
    for number, shares in enumerate(threads):
        for at_ms in (0, 2_000):
            for metric, rate in zip(_OF_THREAD, (0.0, *shares), strict=True):
                run.row(
                    "readings", rank=number, restart=0, name=metric.name, labels="{}",
                    time_ns=START + at_ms * MS, value=2 + rate * at_ms / 1e3,
                )  # fmt: skip
    found = judge_run(read_run(run.write()), rank).findings
    return [one for one in found if one.id == "straggler"]


def test_a_rank_that_takes_longer_for_itself(tmp_path):
    """In which section, by how much, and what would be won at most."""
    usual = {"forward": 10, "backward": 20}
    (found,) = judged(tmp_path, usual, usual | {"forward": 25}, usual)

    assert found.where == Where(section="forward", rank=1)
    assert found.evidence == {"forward more_ns": 15 * MS}
    # As slow as in the forward pass it may be in the backward pass, too: 20 · 15 / 25 more.
    middle = (0.7 * 15 / 35 + 1.2 * (15 + 12) / 35) / 2
    assert found.gain == Gain(low=pytest.approx(middle - 0.2), high=pytest.approx(middle + 0.2))
    assert found.summary == (
        "rank 1 likely delays the other ranks: its forward takes 2.5 × the median time of all ranks"
    )
    assert found.command == "otel-mlperf summary 3f2a --rank 1"


def test_a_rank_that_waits_is_not_accused(tmp_path):
    """Who is long in the backward pass may be the one that waits."""
    assert judged(tmp_path, {"forward": 10, "backward": 20}, {"forward": 10, "backward": 60}) == []


def test_a_section_that_only_one_rank_has(tmp_path):
    """There is nothing to compare it with."""
    (found,) = judged(tmp_path, {"forward": 10}, {"forward": 10, "save": 9})

    assert found.summary == (
        "rank 1 likely delays the other ranks: it spends time in save, the median rank does not"
    )


def test_of_one_rank_nothing_is_said(tmp_path):
    """It was asked for alone, or is alone."""
    usual, slow = {"forward": 10}, {"forward": 30}

    assert judged(tmp_path / "asked", usual, slow, rank=1) == []
    assert judged(tmp_path / "alone", slow) == []


def test_a_rank_that_waits_in_no_section_is_not_accused(tmp_path):
    """A collective that nobody has named: it is as long as another rank works longer."""
    slow, waits = {"forward": 30, "sync": 1}, {"forward": 10, "sync": 21}
    (found,) = judged(tmp_path, slow, waits)

    assert found.where == Where(section="forward", rank=0)


def test_who_works_longer_in_no_section_is_named(tmp_path):
    """The other one waits in the backward pass, as ranks of DDP do."""
    slow, waits = {"augment": 30, "backward": 10}, {"augment": 10, "backward": 30}
    (found,) = judged(tmp_path, slow, waits)

    assert found.where == Where(section="augment", rank=0)


def test_two_ranks_that_are_slow_in_different_things(tmp_path):
    """Neither of them waits: a short wait does not explain a long time."""
    usual = {"forward": 10, "save": 5, "backward": 30}
    found = judged(tmp_path, usual | {"forward": 16}, usual | {"save": 45}, usual)

    assert {one.where.rank for one in found} == {0, 1}


@pytest.mark.parametrize("wait", [7, 13])
def test_who_waits_for_buffers_in_the_forward_pass_is_not_accused(tmp_path, wait):
    """DDP makes those of batch norms equal there, so that the first one waits for the late one."""
    late = {"forward": 18, "augment": 16, "backward": 10}
    first = {"forward": 18 + wait, "augment": 2, "backward": 24 - wait}
    (found,) = judged(tmp_path, first, late, ddp=True)

    assert found.where == Where(section="augment", rank=1)


def test_a_rank_that_is_slow_in_the_forward_pass_alone(tmp_path):
    """Also under DDP: nobody else is late."""
    usual = {"forward": 10, "backward": 20}
    (found,) = judged(tmp_path, usual, usual | {"forward": 25}, ddp=True)

    assert found.where == Where(section="forward", rank=1)


def test_the_gain_of_a_rank_that_is_slow_in_what_is_its_own_alone(tmp_path):
    """The others wait for no more than that."""
    usual = {"augment": 10, "forward": 10, "backward": 50}
    (found,) = judged(tmp_path, usual | {"backward": 65}, usual | {"augment": 25})

    assert (found.gain.low, found.gain.high) == pytest.approx((0.7 * 15 / 85, 1.2 * 15 / 85))


def test_the_gain_of_a_rank_that_is_slow_in_forward_and_backward(tmp_path):
    """Its forward pass takes 11 % of a step longer, its backward pass up to 19 % likewise.

    Its main thread had a CPU for 40 % more: it is all of that.
    """
    waits = {"forward": 50, "backward": 150, "optimizer": 20}
    slow = {"forward": 75, "backward": 125, "optimizer": 20}
    threads = [(0.4, 0.0), (0.8, 0.0)]
    (found,) = judged(tmp_path, waits, slow, threads=threads)

    assert found.where == Where(section="forward", rank=1)
    assert found.gain.low < 0.3 < found.gain.high
    assert found.gain.high - found.gain.low <= 0.4


@pytest.mark.parametrize(
    ("parts", "work", "gain"),
    [
        # More work in its augmentation alone, whatever else its thread did.
        (({"augment": 0, "backward": 80}, {"augment": 30, "backward": 50}), 0.55, 30 / 80),
        # Its forward pass alone.
        (({"forward": 10, "backward": 70}, {"forward": 40, "backward": 40}), 0.30, 30 / 80),
        # Its backward pass as well: at most as slow as the forward pass.
        (({"forward": 10, "backward": 70}, {"forward": 20, "backward": 60}), 0.45, 0.45),
        (({"forward": 10, "backward": 70}, {"forward": 20, "backward": 60}), 0.70, 0.5),
    ],
)
@pytest.mark.parametrize("others", [0.0, 1.0])
def test_the_gain_is_what_the_others_wait(tmp_path, parts, work, gain, others):
    """By the work of the main threads, which wait for CPUs in proportion where others have them."""
    scale = 1 + others
    threads = [(0.2 / scale, 0.2 - 0.2 / scale)]
    threads.append(((0.2 + work) / scale, (0.2 + work) * (1 - 1 / scale)))
    (found,) = judged(tmp_path, *parts, threads=threads)

    assert (found.gain.low, found.gain.high) == pytest.approx((0.7 * gain, 1.2 * gain), abs=0.01)


def test_a_rank_that_waits_for_a_cpu_is_no_straggler(tmp_path):
    """Others had it for a tenth of its time: its optimizer takes longer for that."""
    usual = {"forward": 50, "optimizer": 50, "backward": 100}
    late = {"forward": 50, "optimizer": 70, "backward": 80}

    assert judged(tmp_path / "waits", usual, late, threads=[(0.5, 0.1), (0.5, 0.2)]) == []
    assert judged(tmp_path / "works", usual, late, threads=[(0.5, 0.1), (0.6, 0.1)])


def test_healthy_ranks_whose_buffers_are_made_equal_have_no_straggler(tmp_path):
    """Rank 1 gets them from rank 0, which takes two milliseconds, and computes no more for it."""
    first, second = {"forward": 5, "backward": 11}, {"forward": 7, "backward": 9}
    threads = [(0.25, 0.0), (0.25, 0.0)]

    assert judged(tmp_path / "known", first, second, ddp=True, threads=threads) == []
    assert judged(tmp_path / "unknown", first, second, ddp=True) == []
    slow = [(0.25, 0.0), (0.4, 0.0)]
    assert len(judged(tmp_path / "slow", first, second, ddp=True, threads=slow)) == 1
