"""The rank with more data is named, and not the one that waits for it."""

from __future__ import annotations

import pytest
from rank_runs import STEPS, exposed, found_in, stepping
from run_folders import MS

from otel_mlperf.findings.finding import Gain, Where

WORK = {"data.load": 2, "forward": 10, "backward": 28}
WAITING = {"data.load": 1, "forward": 5, "backward": 34}
IDS = ("uneven_shards", "straggler", "collectives")


def fed(run, **amounts):
    """What is in a batch of each rank."""
    for step in run.steps:
        step.update({what: by_rank[step["rank"]] for what, by_rank in amounts.items()})
    return run


@pytest.mark.parametrize("heavy", [0, 1])
def test_a_rank_with_larger_batches(tmp_path, heavy):
    """It is named, with what would be won if it shared; no other finding says it again."""
    ranks = [WAITING, WAITING]
    ranks[heavy] = WORK
    samples = [64, 64]
    samples[heavy] = 192
    run = fed(stepping(tmp_path, *ranks), samples=samples)
    ddp_ms = [20, 20]
    ddp_ms[heavy] = 4
    exposed(run, *ddp_ms)
    found = found_in(run, *IDS)

    one = found.pop("uneven_shards")
    assert found == {}
    assert one.where == Where(rank=heavy)
    assert one.summary == (
        f"rank {heavy} has 3.0 × as many samples per step as the median rank, and the other "
        "ranks wait for it"
    )
    assert one.evidence == {
        "rank 0 samples": samples[0] * STEPS,
        "rank 1 samples": samples[1] * STEPS,
    }
    # 36 of its 40 ms are its own, and a third of its samples would be another's.
    assert one.gain.high == pytest.approx(36 / 40 / 3)
    assert one.gain.low == pytest.approx(one.gain.high / 2)


def test_a_rank_with_longer_samples(tmp_path):
    """As many samples, but more in them."""
    run = fed(stepping(tmp_path, WAITING, WORK, WAITING), samples=[8] * 3, elements=[80, 160, 80])
    one = found_in(run, *IDS)["uneven_shards"]

    assert one.where == Where(rank=1)
    assert "2.0 × as many elements" in one.summary


def test_a_rank_with_more_batches(tmp_path):
    """It goes on when the others are done: that takes the run longer, not a step."""
    run = stepping(tmp_path, WORK, WORK)
    for step in list(run.steps):
        if step["rank"] == 1 and step["n"] >= STEPS // 2:
            run.steps.remove(step)
    one = found_in(run, *IDS)["uneven_shards"]

    assert one.where == Where(rank=0)
    assert one.summary == (
        "rank 0 has 2.0 × as many steps as the median rank, and the other ranks wait for it"
    )
    assert one.gain == Gain(low=0.0, high=pytest.approx(0.25), of="run")


@pytest.mark.parametrize(
    "amounts",
    [
        {},  # nobody knows
        {"samples": [64, 64]},
        {"samples": [64, 70]},
        {"samples": [64, None]},
        {"samples": [64, 64], "elements": [1000, 1100]},
    ],
)
def test_shards_that_are_even(tmp_path, amounts):
    """Nothing is said."""
    assert found_in(fed(stepping(tmp_path, WORK, WORK), **amounts), *IDS) == {}


def test_of_one_rank_nothing_is_said(tmp_path):
    """There is nothing to compare it with."""
    assert found_in(fed(stepping(tmp_path, WORK), samples=[64]), *IDS) == {}


def test_a_last_batch_that_is_smaller(tmp_path):
    """One step in thirty makes no shard uneven."""
    run = fed(stepping(tmp_path, WORK, WORK), samples=[64, 64])
    run.steps[-1]["samples"] = 8

    assert found_in(run, *IDS) == {}
    assert run.steps[-1]["duration_ns"] == 40 * MS
