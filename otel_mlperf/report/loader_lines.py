"""How does what happened inside DataLoaders look on a terminal?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf.report.lines import LABEL, Line, labelled_lines, short, wrapped
from otel_mlperf.report.quantities import duration, percent, plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_mlperf.analysis.summary.loader_shapes import FirstBatches, LoaderUse, WorkerUse

_MOST: Final = 3
_MOST_SLOW: Final = 3
_STARTED: Final = "started"


def loader_lines(loaders: Sequence[LoaderUse], width: int) -> list[Line]:
    """Waits and ready batches, what a batch takes a worker, slow ones, what their start takes."""
    room, lines = width - LABEL, []
    for loader in loaders[:_MOST]:
        lines += wrapped(f"{loader.dataset}: ", list(_waits(loader)), room)
        lines += [short(line, room) for line in _inside(loader)]
    if rest := loaders[_MOST:]:
        lines.append(f"{plural(len(rest), 'other')}: summary --json has all of them")
    return labelled_lines("loader", lines)


def _waits(loader: LoaderUse) -> Iterator[str]:
    batches = f"{loader.batches:,} batch{'es' * (loader.batches != 1)}"
    yield f"{batches}, waited {duration(loader.wait_ns)}"
    if loader.ready is not None and loader.none_ready_share is not None:
        yield f"{loader.ready:.1f} ready when asked, none for {percent(loader.none_ready_share)}"


def _inside(loader: LoaderUse) -> Iterator[str]:
    if loader.fetch_ns is not None and loader.items_ns is not None:
        who = "the program" if loader.ready is None else "a worker"
        collate = duration(loader.collate_ns or 0.0)
        parts = f"__getitem__ {duration(loader.items_ns)}, collate {collate}"
        yield f"a batch takes {who} {duration(loader.fetch_ns)}: {parts}"
    slow = [worker for worker in loader.workers if worker.is_slow]
    ranks = len({worker.rank for worker in loader.workers})
    for worker in slow[:_MOST_SLOW]:
        yield _slow(worker, loader.workers, ranks)
    yield from (_started(first) for first in loader.first_batches if first.workers == _STARTED)


def _slow(worker: WorkerUse, workers: Sequence[WorkerUse], ranks: int) -> str:
    others = [other.fetch_ns for other in workers if not other.is_slow]
    rank = f" of rank {worker.rank}" if ranks > 1 else ""
    usual = f", the others {duration(sum(others) / len(others))}" if others else ""
    return f"worker {worker.worker}{rank} is slow: {duration(worker.fetch_ns)} a batch{usual}"


def _started(first: FirstBatches) -> str:
    if first.passes == 1:
        return f"workers start: {duration(first.mean_ns)} to the first batch"
    every = f"{first.passes} × {duration(first.mean_ns)}"
    return f"workers start anew each pass, {every}: use persistent_workers=True"
