"""The buckets of steps are exact, and contain every step of the figures."""

from __future__ import annotations

import pytest
from run_folders import MS, START, RunFolderBuilder, digits

from otel_mlperf.analysis.page.step_buckets import read_step_buckets
from otel_mlperf.analysis.steps.step_shares import read_steps
from otel_mlperf.store.table_reader import Store


def buckets_of(run, most=500, *, has_warm_up=False):
    """Those of a folder that is being built."""
    store = Store(run.write())
    steps = read_steps(store, "train", None)
    return read_step_buckets(store, steps, has_warm_up=has_warm_up, most=most)


def test_few_steps_have_a_bucket_each(tmp_path):
    """As they were, without the warm-up."""
    run = digits(tmp_path)

    found = buckets_of(run, has_warm_up=True)

    assert found.size == 1
    assert found.first == found.last == list(range(1, 40))
    assert found.min_ns == found.max_ns == [step["duration_ns"] for step in run.steps[1:]]
    assert found.start_ns == [step["start_ns"] for step in run.steps[1:]]


def test_neighbours_share_a_bucket(tmp_path):
    """Its shortest, mean and longest step are exact; the last bucket may have fewer."""
    run = RunFolderBuilder(tmp_path)
    for n in range(10):
        run.step(n, n * 100 * MS, {"forward": (10 + n) * MS})

    found = buckets_of(run, most=4)

    assert found.size == 3
    assert found.first == [0, 3, 6, 9]
    assert found.last == [2, 5, 8, 9]
    assert found.count == [3, 3, 3, 1]
    assert found.min_ns == [10 * MS, 13 * MS, 16 * MS, 19 * MS]
    assert found.mean_ns == [11 * MS, 14 * MS, 17 * MS, 19 * MS]
    assert found.max_ns == [12 * MS, 15 * MS, 18 * MS, 19 * MS]


def test_ranks_share_the_bucket_of_a_step(tmp_path):
    """Which begins when the first of them does, and reaches from the fastest to the slowest."""
    run = RunFolderBuilder(tmp_path, world_size=2)
    for rank in (0, 1):
        run.step(0, rank * MS, {"forward": (10 + 4 * rank) * MS}, rank=rank)

    found = buckets_of(run)

    assert (found.start_ns, found.count) == ([START], [1])
    assert (found.min_ns, found.mean_ns, found.max_ns) == ([10 * MS], [12 * MS], [14 * MS])


def test_sections_add_up_to_the_mean(tmp_path):
    """In every bucket, with those that are taken together and what is in none."""
    run = RunFolderBuilder(tmp_path)
    for n in range(30):
        parts = {f"part{at}": (1 + at + n % 3) * MS for at in range(12) if (at + n) % 4}
        run.step(n, n * 200 * MS, parts, own=2 * MS)

    found = buckets_of(run, most=7)

    added = [sum(means) for means in zip(*(one.mean_ns for one in found.sections), strict=True)]
    assert added == pytest.approx(found.mean_ns)
    assert [one.name for one in found.sections][-2:] == ["others", "untracked"]
    assert len(found.sections) == 10


def test_a_step_that_is_made_again_comes_where_it_was_made(tmp_path):
    """After a restart: buckets lie in the order of time."""
    run = RunFolderBuilder(tmp_path)
    for n in range(4):
        run.step(n, n * 100 * MS, {"forward": 10 * MS})
    for n in range(2):
        run.step(n, (400 + n * 100) * MS, {"forward": 20 * MS}, restart=1, number=2 + n)

    found = buckets_of(run)

    assert found.first == [0, 1, 2, 3, 2, 3]
    assert found.start_ns == sorted(found.start_ns)


def test_steps_that_failed_are_not_in_it(tmp_path):
    """As they are not in the figures; nor is what they did on a rank whose others went well."""
    run = RunFolderBuilder(tmp_path, world_size=2)
    for rank in (0, 1):
        run.step(0, 0, {"forward": 10 * MS}, rank=rank, error=rank == 1)
        run.step(1, 100 * MS, {"forward": 3 * MS}, rank=rank, error=True)

    found = buckets_of(run)

    assert (found.first, found.mean_ns) == ([0], [10 * MS])
    assert [one.mean_ns for one in found.sections] == [[10 * MS], [0.0]]
