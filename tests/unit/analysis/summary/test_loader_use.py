"""A summary reports what happened inside the loaders of a run."""

from __future__ import annotations

from loader_runs import LoaderRun

from otel_mlperf import names
from otel_mlperf.analysis.summary.loader_shapes import FirstBatches, LoaderUse, WorkerUse
from otel_mlperf.analysis.summary.loader_use import mark_slow, read_loaders
from otel_mlperf.store.table_reader import Store


def loaders(run):
    return read_loaders(Store(run.write(), None))


def test_all_of_a_loader(tmp_path):
    """Totals are the last of each start of each rank, together."""
    run = LoaderRun(tmp_path)
    for restart, at, batches in ((0, 1, 3.0), (0, 2, 10.0), (1, 1, 20.0)):
        run.counted(names.LOADER_BATCHES, batches, at=at, restart=restart)
        run.counted(names.LOADER_WAIT, batches / 10, at=at, restart=restart)
    run.counted(names.LOADER_READY, 30.0, ".count")
    run.counted(names.LOADER_READY, 45.0, ".sum")
    run.counted(names.LOADER_NONE_READY, 3.0)
    run.fetched("1", 10, 0.2, 0.1)
    run.fetched("0", 20, 0.6, 0.2, cpu_s=0.1, delay_s=0.2)
    run.passes("started", 2, 0.25, end_s=0.125)

    assert loaders(run) == [
        LoaderUse(
            dataset="Pix",
            batches=30,
            wait_ns=3e9,
            ready=1.5,
            none_ready_share=0.1,
            fetch_ns=1.1e9 / 30,
            items_ns=0.8e9 / 30,
            collate_ns=0.3e9 / 30,
            workers=[
                WorkerUse(
                    rank=0,
                    worker="0",
                    batches=20,
                    items_ns=30e6,
                    collate_ns=10e6,
                    cpu_ns=5e6,
                    delay_ns=10e6,
                ),
                WorkerUse(rank=0, worker="1", batches=10, items_ns=20e6, collate_ns=10e6),
            ],
            first_batches=[FirstBatches(workers="started", passes=2, mean_ns=250e6, end_ns=125e6)],
        )
    ]


def test_the_longest_wait_comes_first(tmp_path):
    """A loader without workers has none ready; what was never asked is left out."""
    run = LoaderRun(tmp_path)
    for dataset, wait in (("Short", 1.0), ("Long", 2.0)):
        run.counted(names.LOADER_BATCHES, 4.0, dataset=dataset)
        run.counted(names.LOADER_WAIT, wait, dataset=dataset)
    run.fetched("0", 2, 0.1, 0.1, dataset="Unused")

    long, short = loaders(run)
    assert (long.dataset, short.dataset) == ("Long", "Short")
    assert (long.ready, long.none_ready_share, long.fetch_ns, long.workers) == (
        None,
        None,
        None,
        [],
    )


def test_slow_workers_are_marked():
    """Those that take half as long again as the others do, once they have fetched a few."""

    def worker(number, batches, items_ns):
        return WorkerUse(
            rank=0, worker=str(number), batches=batches, items_ns=items_ns, collate_ns=0.0
        )

    usual = [worker(number, 9, 10e6) for number in (10, 2)]
    told = mark_slow([worker(3, 9, 16e6), *usual, worker(4, 2, 99e6), worker(5, 9, 14e6)])

    assert [use.worker for use in told] == ["2", "3", "4", "5", "10"]
    assert [use.worker for use in told if use.is_slow] == ["3"]
    assert not mark_slow([worker(0, 9, 5e6)])[0].is_slow
    # Of a loader without workers the processes fetch themselves, whatever other loaders do.
    assert not any(use.is_slow for use in mark_slow([worker("main", 9, 30e6), *usual]))


def test_what_a_worker_waits_for_else():
    """What of its samples is neither CPU time nor waiting for a CPU; unknown without either."""

    def idle_ns(cpu_ns, delay_ns):
        about = {"rank": 0, "worker": "0", "batches": 9, "items_ns": 30.0, "collate_ns": 5.0}
        return WorkerUse(**about, cpu_ns=cpu_ns, delay_ns=delay_ns).idle_ns

    assert [idle_ns(10.0, 4.0), idle_ns(10.0, None), idle_ns(31.0, 1.0)] == [16.0, 20.0, 0.0]
    assert idle_ns(None, None) is None
