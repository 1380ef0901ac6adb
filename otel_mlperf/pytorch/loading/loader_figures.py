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
"""That all of this is measured by."""
_EVERY_NS: Final = 500_000_000
"""How often what was counted is told."""
_MOST_WORKERS: Final = 64
"""With a word of their own."""
_ALL_LOOKED_AT: Final = 64
"""Batches that the process itself has fetched, of which each is looked into."""
_LOOKED_AT: Final = 8
"""Later one in so many is, for all of these: the loop waits while it is looked into."""
MAIN: Final = "main"
"""The worker of a loader without workers: the process itself."""
STARTED, KEPT, NONE = "started", "kept", "none"


class LoaderFigures:
    """One pass after the other through a loader, by one of its iterators."""

    def __init__(self, label: str, workers: int, now_ns: int) -> None:
        self._labels: Labels = ((names.DATASET, label),)
        self.counts = WorkerCounts(workers) if workers else None
        self._batches = self._wait_ns = self._none_ready = 0
        """Since it was told last: a cell for each would cost a batch as much as all the rest."""
        self._here: list[Fetched] = []
        """In the process itself, since it was told last: summed up then, it costs a batch less."""
        self._like: Fetched | None = None
        """What was told of these last."""
        self._fetches = self._passed_over = 0
        """There: all, and since it was told last those that were not looked into."""
        self._how = STARTED if workers else NONE
        self._began_ns: int | None = now_ns
        self._ready = _series(names.LOADER_READY, self._labels)

    def goes_on(self, now_ns: int) -> None:
        """Another pass with the same workers."""
        self._began_ns = now_ns
        self._how = KEPT if self.counts is not None else NONE

    def given(self, asked_ns: int, now_ns: int, ready: int | None) -> None:
        """The loop has got a batch; ``ready``: how many there were when it asked for it."""
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
        """The loop has asked once more than there are batches; workers that are not kept end."""
        if self._how != NONE:
            labels: Labels = (*self._labels, (names.LOADER_WORKERS, self._how))
            _series(names.LOADER_END, labels).record((now_ns - asked_ns) / 1e9)

    def fetched(self, fetched: Fetched) -> None:
        """The process itself has fetched one."""
        self._here.append(fetched)

    def pass_over(self) -> bool:
        """The process itself fetches a batch now: says, and remembers, if that is only counted."""
        self._fetches += 1
        if self._fetches <= _ALL_LOOKED_AT or self._fetches % _LOOKED_AT == 0:
            return False
        self._passed_over += 1
        return True

    def tell(self) -> None:
        """Counts what it and its workers have counted since."""
        batches, wait_ns, none_ready = self._batches, self._wait_ns, self._none_ready
        self._batches = self._wait_ns = self._none_ready = 0
        _add(names.LOADER_BATCHES, batches, self._labels)
        _add(names.LOADER_WAIT, wait_ns / 1e9, self._labels)
        _add(names.LOADER_NONE_READY, none_ready, self._labels)
        here, self._here, passed_over, self._passed_over = self._here, [], self._passed_over, 0
        if here:
            self._like = sum_of(0, here)
            self._tell_fetched(MAIN, self._like.for_all(len(here) + passed_over))
        elif passed_over and self._like is not None:  # a few since then, and none was looked into
            like = self._like._replace(sized=0, elements=0)
            self._tell_fetched(MAIN, like.for_all(passed_over))
        for fetched in self.counts.grown() if self.counts is not None else ():
            is_known = fetched.worker < _MOST_WORKERS
            self._tell_fetched(str(fetched.worker) if is_known else names.OTHER, fetched)

    def forget(self) -> None:
        """What was counted since it was told last is none of the run that begins now."""
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
    """The iterators of this process."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], LoaderFigures]] = {}
        self._untold: list[tuple[weakref.ref[Any], LoaderFigures]] = []
        self._due_ns = 0
        self.own_ns = 0
        """What looking took of the program's time since it was told last."""

    def add(self, iterator: Any, figures: LoaderFigures) -> None:
        """An iterator was made."""
        number = id(iterator)
        # Forgotten by a function of C: the interpreter drops what is raised in one of Python's, as
        # those of a WeakKeyDictionary are.
        self._known[number] = weakref.ref(iterator, partial(self._known.pop, number)), figures
        self._untold.append((weakref.ref(iterator), figures))

    def of(self, iterator: Any) -> LoaderFigures | None:
        """Its figures; None of one that was made before anybody looked."""
        known = self._known.get(id(iterator))
        return known[1] if known is not None else None

    def look(self, now_ns: int) -> None:
        """Counts what has come, twice a second at most."""
        if now_ns >= self._due_ns:
            self._due_ns = now_ns + _EVERY_NS
            self.tell()

    def tell(self) -> None:
        """Counts it at once; who has no iterator any more has told all."""
        for figures in list(self._told()):
            figures.tell()
        own_ns, self.own_ns = self.own_ns, 0
        recorder = active()
        if recorder is not None:
            recorder.journal.count(Word.WATCH_TIME, own_ns)

    def forget(self) -> None:
        """A run begins: what was fetched before it is none of it."""
        self.own_ns = 0
        for _, figures in self._untold:
            figures.forget()

    def _told(self) -> Iterator[LoaderFigures]:
        there = [(iterator, iterator()) for iterator, _ in self._untold]
        yield from (figures for _, figures in self._untold)
        gone = {id(iterator) for iterator, known in there if known is None}
        self._untold = [pair for pair in self._untold if id(pair[0]) not in gone]


def record_pinned(taken_ns: int) -> None:
    """A batch was copied into pinned memory."""
    _series(names.LOADER_PIN, ()).record(taken_ns / 1e9)


def _add(metric: Metric, value: float, labels: Labels) -> None:
    recorder = active()
    if recorder is not None and value:
        recorder.cells.add(metric.name, metric.unit, value, labels)


@cache
def _series(metric: Metric, labels: Labels) -> HistogramSeries:
    return HistogramSeries(metric.name, content_of("histogram", metric.name, metric.unit, labels))
