"""Counters of a DataLoader: waits, ready batches, time to the first batch, and its workers."""

from __future__ import annotations

import time
import weakref
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names
from otel_mlperf.journal.layout import Word
from otel_mlperf.pytorch.loading.worker_counts import WorkerCounts, sum_of
from otel_mlperf.recorder.api.span import active
from otel_mlperf.recorder.instruments.cells import content_of
from otel_mlperf.recorder.instruments.series_methods import HistogramSeries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_mlperf.names import Metric
    from otel_mlperf.pytorch.loading.worker_counts import Fetched
    from otel_mlperf.recorder.instruments.cells import Labels

clock: Final = time.monotonic_ns
"""Clock for all of these times."""
_EVERY_NS: Final = 500_000_000
"""Interval at which the counts are reported."""
_MOST_WORKERS: Final = 64
"""Maximum number of workers with a label of their own."""
_ALL_LOOKED_AT: Final = 64
"""Number of first batches fetched by the process itself that are all measured."""
_LOOKED_AT: Final = 8
"""Later one batch in this many is measured, as a sample: the loop waits during the measurement."""
MAIN: Final = "main"
"""Worker label of a loader without workers: the process itself."""
STARTED, KEPT, NONE = "started", "kept", "none"


class LoaderFigures:
    """Figures of one pass after the other through a loader, by one of its iterators."""

    def __init__(self, label: str, workers: int, now_ns: int) -> None:
        self._labels: Labels = ((names.DATASET, label),)
        self.counts = WorkerCounts(workers) if workers else None
        self._batches = self._wait_ns = self._none_ready = 0
        """Since the last report: a cell for each would cost as much per batch as everything else.
        """
        self._here: list[Fetched] = []
        """Batches of the process itself since the last report: summing later is cheaper per batch.
        """
        self._like: Fetched | None = None
        """The sum last reported for these."""
        self._fetches = self._passed_over = 0
        """In the process itself: all fetches, and those not measured since the last report."""
        self._how = STARTED if workers else NONE
        self._began_ns: int | None = now_ns
        self._ready = _series(names.LOADER_READY, self._labels)

    def goes_on(self, now_ns: int) -> None:
        """Start another pass with the same workers."""
        self._began_ns = now_ns
        self._how = KEPT if self.counts is not None else NONE

    def given(self, asked_ns: int, now_ns: int, ready: int | None) -> None:
        """Count a batch received by the loop; ``ready``: number of ready batches at its request."""
        began_ns, self._began_ns = self._began_ns, None
        self._wait_ns += now_ns - asked_ns
        self._batches += 1
        if ready is not None:
            self._ready.record(ready)
            self._none_ready += not ready
        if began_ns is not None:
            labels: Labels = (*self._labels, (names.LOADER_WORKERS, self._how))
            _series(names.LOADER_FIRST_BATCH, labels).record((now_ns - began_ns) / 1e9)

    def ended(self, asked_ns: int, now_ns: int) -> None:
        """Count the request after the last batch; workers that are not persistent end."""
        if self._how != NONE:
            labels: Labels = (*self._labels, (names.LOADER_WORKERS, self._how))
            _series(names.LOADER_END, labels).record((now_ns - asked_ns) / 1e9)

    def fetched(self, fetched: Fetched) -> None:
        """Add a batch that the process itself has fetched."""
        self._here.append(fetched)

    def pass_over(self) -> bool:
        """Count a fetch by the process itself; return whether it is only counted, not measured."""
        self._fetches += 1
        if self._fetches <= _ALL_LOOKED_AT or self._fetches % _LOOKED_AT == 0:
            return False
        self._passed_over += 1
        return True

    def tell(self) -> None:
        """Report the counts of this loader and its workers since the last report."""
        batches, wait_ns, none_ready = self._batches, self._wait_ns, self._none_ready
        self._batches = self._wait_ns = self._none_ready = 0
        _add(names.LOADER_BATCHES, batches, self._labels)
        _add(names.LOADER_WAIT, wait_ns / 1e9, self._labels)
        _add(names.LOADER_NONE_READY, none_ready, self._labels)
        here, self._here, passed_over, self._passed_over = self._here, [], self._passed_over, 0
        if here:
            self._like = sum_of(0, here)
            self._tell_fetched(MAIN, self._like.for_all(len(here) + passed_over))
        elif passed_over and self._like is not None:  # a few batches since then, none measured
            like = self._like._replace(sized=0, elements=0)
            self._tell_fetched(MAIN, like.for_all(passed_over))
        for fetched in self.counts.grown() if self.counts is not None else ():
            is_known = fetched.worker < _MOST_WORKERS
            self._tell_fetched(str(fetched.worker) if is_known else names.OTHER, fetched)

    def forget(self) -> None:
        """Discard the counts since the last report: they precede the run that starts now."""
        self._batches = self._wait_ns = self._none_ready = 0
        self._here, self._passed_over = [], 0
        if self.counts is not None:
            self.counts.forget()

    def _tell_fetched(self, worker: str, fetched: Fetched) -> None:
        labels: Labels = (*self._labels, (names.LOADER_WORKER, worker))
        _add(names.LOADER_FETCHED, fetched.batches, labels)
        parts = ((names.LOADER_ITEMS, fetched.items_ns), (names.LOADER_COLLATE, fetched.collate_ns))
        for part, spent_ns in parts:
            _add(names.LOADER_FETCH_TIME, spent_ns / 1e9, (*labels, (names.LOADER_PART, part)))
        _add(names.LOADER_CPU, fetched.cpu_ns / 1e9, labels)
        _add(names.LOADER_DELAY, fetched.delay_ns / 1e9, labels)
        _add(names.LOADER_SIZED, fetched.sized, labels)
        _add(names.LOADER_ELEMENTS, fetched.elements, labels)


class Loaders:
    """The iterators of this process, with their figures."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], LoaderFigures]] = {}
        self._untold: list[tuple[weakref.ref[Any], LoaderFigures]] = []
        self._due_ns = 0
        self.own_ns = 0
        """Time that observing took from the program since the last report."""

    def add(self, iterator: Any, figures: LoaderFigures) -> None:
        """Add a new iterator."""
        number = id(iterator)
        # Removed by a function of C: the interpreter drops exceptions raised in a Python callback,
        # such as those of a WeakKeyDictionary.
        self._known[number] = weakref.ref(iterator, partial(self._known.pop, number)), figures
        self._untold.append((weakref.ref(iterator), figures))

    def of(self, iterator: Any) -> LoaderFigures | None:
        """Return its figures; None for an iterator that was made before observing started."""
        known = self._known.get(id(iterator))
        return known[1] if known is not None else None

    def look(self, now_ns: int) -> None:
        """Report new counts, at most twice a second."""
        if now_ns >= self._due_ns:
            self._due_ns = now_ns + _EVERY_NS
            self.tell()

    def tell(self) -> None:
        """Report new counts now; deleted iterators are reported for the last time."""
        for figures in list(self._told()):
            figures.tell()
        own_ns, self.own_ns = self.own_ns, 0
        recorder = active()
        if recorder is not None:
            recorder.journal.count(Word.WATCH_TIME, own_ns)

    def forget(self) -> None:
        """Discard what was fetched before the run that starts now."""
        self.own_ns = 0
        for _, figures in self._untold:
            figures.forget()

    def _told(self) -> Iterator[LoaderFigures]:
        there = [(iterator, iterator()) for iterator, _ in self._untold]
        yield from (figures for _, figures in self._untold)
        gone = {id(iterator) for iterator, known in there if known is None}
        self._untold = [pair for pair in self._untold if id(pair[0]) not in gone]


def record_pinned(taken_ns: int) -> None:
    """Record the duration of copying a batch into pinned memory."""
    _series(names.LOADER_PIN, ()).record(taken_ns / 1e9)


def _add(metric: Metric, value: float, labels: Labels) -> None:
    recorder = active()
    if recorder is not None and value:
        recorder.cells.add(metric.name, metric.unit, value, labels)


@cache
def _series(metric: Metric, labels: Labels) -> HistogramSeries:
    return HistogramSeries(metric.name, content_of("histogram", metric.name, metric.unit, labels))
