"""The map of ranks contains the mean of each at its place."""

from __future__ import annotations

from run_folders import MS, START, RunFolderBuilder

from otel_mlperf.analysis.page.rank_map import MAX_RANKS, MOST, read_rank_map
from otel_mlperf.analysis.summary.summary import summarize
from otel_mlperf.store.run_folders import read_run
from otel_mlperf.store.table_reader import Store


def map_of(run):
    """That of a folder that is being built."""
    folder = read_run(run.write())
    steps = summarize(folder).steps
    return read_rank_map(Store(folder.path), steps, has_warm_up=False)


def ranks_of(folder, ranks, steps=1):
    """A run whose steps take 10 ms and one more for each rank and step."""
    run = RunFolderBuilder(folder, world_size=ranks)
    for rank in range(ranks):
        run.process(10_000 * MS, rank=rank, world_size=ranks)
        for n in range(steps):
            run.step(n, n * 100 * MS, {"forward": (10 + rank + n) * MS}, rank=rank)
    return run


def test_each_rank_is_a_row_and_each_step_a_column(tmp_path):
    """Where they are few."""
    found = map_of(ranks_of(tmp_path, 2, steps=3))

    assert found.ranks == [0, 1]
    assert found.first == found.last == [0, 1, 2]
    assert found.start_ns == [START + at * MS for at in (0, 100, 200)]
    assert found.mean_ns == [[at * MS for at in row] for row in ((10, 11, 12), (11, 12, 13))]


def test_neighbours_share_a_column(tmp_path):
    """With their mean."""
    found = map_of(ranks_of(tmp_path, 2, steps=2 * MOST))

    assert len(found.first) == MOST
    assert (found.first[1], found.last[1]) == (2, 3)
    assert found.mean_ns[0][1] == 12.5 * MS


def test_a_rank_that_has_not_come_so_far_has_nothing_there(tmp_path):
    """It is not as if its steps took no time."""
    run = ranks_of(tmp_path, 2)
    run.step(1, 100 * MS, {"forward": 10 * MS}, rank=0)

    assert map_of(run).mean_ns[1] == [11 * MS, None]


def test_of_too_many_ranks_the_slowest_are_shown(tmp_path):
    """In their order."""
    found = map_of(ranks_of(tmp_path, MAX_RANKS + 2))

    assert found.ranks == list(range(2, MAX_RANKS + 2))


def test_one_rank_has_no_map(tmp_path):
    """There is nobody to compare it with."""
    assert map_of(ranks_of(tmp_path, 1, steps=3)) is None
