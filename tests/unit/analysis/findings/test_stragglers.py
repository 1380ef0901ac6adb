"""Is the rank that holds up the others named, and none that waits for it?"""

from __future__ import annotations

import pytest
from run_folders import MS, START, RunFolderBuilder

from otel_mlperf import names
from otel_mlperf.analysis.findings.finding_sources import judge_run
from otel_mlperf.findings.finding import Gain, Where
from otel_mlperf.store.run_folders import read_run


def judged(runs, *ranks, rank=None, ddp=False):
    """A run of ten steps on each rank, with the sections that it is given."""
    run = RunFolderBuilder(runs)
    for number, parts in enumerate(ranks):
        spent = sum(parts.values())
        for n in range(10):
            sections = {name: ms * MS for name, ms in parts.items()}
            run.step(n, n * spent * MS, sections, rank=number)
        run.process(10 * spent * MS, rank=number, world_size=len(ranks))
        if ddp:
            run.row(
                "readings", rank=number, restart=0, name=names.DDP_BUCKETS.name, labels="{}",
                time_ns=START + MS, value=2.0,
            )  # fmt: skip
    found = judge_run(read_run(run.write()), rank).findings
    return [one for one in found if one.id == "straggler"]


def test_a_rank_that_takes_longer_for_itself(tmp_path):
    """In which section, by how much, and what would be won at most."""
    usual = {"forward": 10, "backward": 20}
    (found,) = judged(tmp_path, usual, usual | {"forward": 25}, usual)

    assert found.where == Where(section="forward", rank=1)
    assert found.evidence == {"forward more_ns": 15 * MS}
    assert found.gain == Gain(low=0.0, high=pytest.approx(15 / 35))
    assert found.summary == "rank 1 likely holds up the others: its forward takes 2.5 × theirs"
    assert found.command == "otel-mlperf summary 3f2a --rank 1"


def test_a_rank_that_waits_is_not_accused(tmp_path):
    """Who is long in the backward pass may be the one that waits."""
    assert judged(tmp_path, {"forward": 10, "backward": 20}, {"forward": 10, "backward": 60}) == []


def test_a_section_that_only_one_rank_has(tmp_path):
    """There is nothing to compare it with."""
    (found,) = judged(tmp_path, {"forward": 10}, {"forward": 10, "save": 9})

    assert found.summary == "rank 1 likely holds up the others: save is on no other one"


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
