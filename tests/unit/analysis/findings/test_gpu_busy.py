"""The use of a GPU is that of the steps, however unevenly it is sampled."""

from __future__ import annotations

import pytest
from gpu_readings import read_gpu
from run_folders import MS, RunFolderBuilder, S

from otel_mlperf.analysis.findings.gpu_busy import max_possible_gain, read_gpu_busy
from otel_mlperf.analysis.findings.run_numbers import RunNumbers
from otel_mlperf.analysis.summary.summary import summarize
from otel_mlperf.store.run_folders import read_run
from otel_mlperf.store.table_reader import Store


def stepping(run, since, until, restart=0, rank=0, ranks=1):
    """Steps of a tenth of a second from one second to another."""
    for n in range(10 * (until - since)):
        run.step(n, since * S + n * 100 * MS, {"forward": 100 * MS}, own=0, rank=rank,
                 restart=restart)  # fmt: skip
    run.process(until * S, rank=rank, world_size=ranks, restart=restart, has_gpu=True)


def numbers_of(run):
    """What findings get to see of it."""
    folder = read_run(run.write())
    store = Store(folder.path)
    return RunNumbers(summarize(folder, store=store), store)


def test_a_reading_counts_for_as_long_as_it_is_since_the_one_before(tmp_path):
    """Each second at first, then each fifth: 10 s of 0.2 and 30 s of 0.8."""
    run = RunFolderBuilder(tmp_path)
    stepping(run, 0, 40)
    read_gpu(run, 0.2, range(1, 11))
    read_gpu(run, 0.8, range(15, 40, 5))

    # The first step has taken a tenth of a second.
    assert read_gpu_busy(numbers_of(run))[0] == pytest.approx((9.9 * 0.2 + 25 * 0.8) / 34.9)


def test_what_lies_between_two_attempts_is_of_neither(tmp_path):
    """An hour without the program, in whose set-up the GPU has nothing to do."""
    run = RunFolderBuilder(tmp_path)
    stepping(run, 0, 20)
    stepping(run, 3600, 3620, restart=1)
    read_gpu(run, 0.9, range(5, 20, 5))
    read_gpu(run, 0.0, [1800, 3598])
    read_gpu(run, 0.9, range(3605, 3620, 5))

    assert read_gpu_busy(numbers_of(run))[0] == pytest.approx(0.9)


@pytest.mark.parametrize(("ranks", "most"), [(1, 0.1), (2, 1.0)])
def test_a_gpu_of_several_ranks_may_wait_in_a_kernel(tmp_path, ranks, most):
    """So what it idles bounds nothing there."""
    run = RunFolderBuilder(tmp_path, world_size=ranks)
    for rank in range(ranks):
        stepping(run, 0, 20, rank=rank, ranks=ranks)
        read_gpu(run, 0.9, range(2, 20, 3), rank=rank)

    assert max_possible_gain(numbers_of(run)) == pytest.approx(most)
