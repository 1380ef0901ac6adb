"""A summary reports what happened inside loaders, on a few lines."""

from __future__ import annotations

from otel_mlperf.analysis.summary.loader_shapes import FirstBatches, LoaderUse, WorkerUse
from otel_mlperf.report.summary_notes import loader_lines
from otel_mlperf.terminal_lines import columns

PIX = LoaderUse(
    dataset="Pix", batches=1200, wait_ns=2e9, ready=1.34, none_ready_share=0.25, fetch_ns=44e6,
    items_ns=39e6, collate_ns=5e6, workers=[], first_batches=[],
)  # fmt: skip


def with_more(loader, **more):
    known = {key: getattr(loader, key) for key in loader.__struct_fields__}
    return LoaderUse(**known | more)


def shown(*loaders, width=80):
    lines = ["".join(part for part, _ in line).rstrip() for line in loader_lines(loaders, width)]
    assert all(columns(line) <= width for line in lines)
    return lines


def test_wait_and_fetch():
    """What the loop waited for, and what its workers did."""
    assert shown(PIX) == [
        "loader    Pix: 1,200 batches, waited 2.00 s in next(),",
        "          1.3 batches queued on average, queue empty at 25 % of requests",
        "          per batch 44.0 ms in a worker: __getitem__ 39.0 ms, collate 5.00 ms",
    ]
    assert shown() == []


def test_without_workers():
    """The program itself fetches, and nothing can be ready."""
    _, *inside = shown(
        with_more(PIX, batches=1, ready=None, none_ready_share=None, collate_ns=548_000)
    )

    assert " ".join(" ".join(inside).split()) == (
        "per batch 44.0 ms in main process: __getitem__ 39.0 ms, collate 548 µs"
    ), "wrapped, never cut"
    unseen = with_more(PIX, fetch_ns=None, items_ns=None, collate_ns=None)
    assert len(shown(unseen)) == 2


def test_slow_worker_is_named():
    """With its rank, where there are several, and what the others take."""
    workers = [
        WorkerUse(rank=rank, worker="3", batches=9, items_ns=ns, collate_ns=1e6, is_slow=ns > 2e7)
        for rank, ns in ((0, 29e6), (1, 9e6))
    ]
    lines = shown(with_more(PIX, workers=workers))

    assert (
        lines[-1].strip() == "worker 3 of rank 0 is slow: 30.0 ms per batch, other workers 10.0 ms"
    )


def test_workers_that_start_anew():
    """What each pass costs, and what saves it."""
    once, anew = (FirstBatches(workers="started", passes=n, mean_ns=222e6) for n in (1, 30))
    kept = FirstBatches(workers="kept", passes=9, mean_ns=5e6)

    told = "worker start-up: 222 ms to the first batch"
    assert shown(with_more(PIX, first_batches=[once, kept]))[-1].strip() == told
    told = "workers restart each pass, 30 × 222 ms: use persistent_workers=True"
    assert shown(with_more(PIX, first_batches=[anew]))[-1].strip() == told


def test_many_loaders():
    """The three that were waited for longest; the others are counted."""
    assert shown(*[PIX] * 5)[-1].strip() == "2 others: summary --json contains all"
