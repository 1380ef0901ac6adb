"""Counters of a DataLoader and its workers: waits, ready batches, CPU time, first batch.

Workers are forked for each epoch and killed at its end. So they count in memory that they share
with the process that started them. This requires no journal for each worker and no messages, and
the counts of a killed worker are kept. In the time that is neither CPU time nor a wait for a CPU, a
thread waits for something else: a file, the network, a lock.
"""

from __future__ import annotations

import mmap
import os
import time
import weakref
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_mlperf import names
from otel_mlperf.journal.layout import Word
from otel_mlperf.own_descriptor import OwnDescriptor
from otel_mlperf.recorder.api.span import active
from otel_mlperf.recorder.core.attribute_values import safe_name_text
from otel_mlperf.recorder.core.interrupts import raises_afterwards
from otel_mlperf.recorder.instruments.cells import content_of
from otel_mlperf.recorder.instruments.series_methods import HistogramSeries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_mlperf.names import Metric
    from otel_mlperf.recorder.instruments.cells import Labels

_PATH: Final = "/proc/thread-self/schedstat"
"""CPU time, time ready to run but not running, time slices; some kernels do not have it."""
_LONGEST: Final = 128


class Used(NamedTuple):
    """CPU use up to a moment, or between two; in nanoseconds."""

    cpu_ns: int
    delay_ns: int
    """Time ready to run, but on no CPU; 0 if the kernel does not report it."""

    def since(self, before: Used) -> Used:
        """Return the use from ``before`` to this moment."""
        return Used(self.cpu_ns - before.cpu_ns, self.delay_ns - before.delay_ns)


class ThreadUse:
    """Reader of the CPU use of the thread that made it; a reading costs 2 µs."""

    _file: OwnDescriptor | None = None

    def __init__(self, path: str = _PATH) -> None:
        with suppress(OSError):
            self._file = OwnDescriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def read(self) -> Used:
        """Return the use up to now."""
        return Used(time.thread_time_ns(), self._delay_ns())

    def _delay_ns(self) -> int:
        if self._file is None:
            return 0
        try:
            return int(os.pread(self._file.fd, _LONGEST, 0).split(None, 2)[1])
        except (OSError, ValueError, IndexError):
            return 0

    def close(self) -> None:
        """Close the descriptor."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    # The descriptor of a thread is closed with it.
    __del__ = raises_afterwards(close)


_WORDS: Final = 8


class Fetched(NamedTuple):
    """Counts of the batches that one worker has fetched."""

    worker: int
    batches: int
    items_ns: int
    """Time in ``__getitem__``, or in the iterator of an iterable dataset."""
    collate_ns: int
    cpu_ns: int
    """CPU time of the thread, during ``items_ns``."""
    delay_ns: int
    """Time ready to run without a CPU, during ``items_ns``."""
    sized: int
    """Number of batches whose samples were measured."""
    elements: int
    """Elements in the samples of these, before they were collated."""

    def for_all(self, batches: int) -> Fetched:
        """Return an estimate for this many batches, assuming that the others were the same."""
        share = batches / self.batches
        return self._replace(
            batches=batches,
            items_ns=int(self.items_ns * share),
            collate_ns=int(self.collate_ns * share),
            cpu_ns=int(self.cpu_ns * share),
            delay_ns=int(self.delay_ns * share),
        )


def sum_of(worker: int, parts: list[Fetched]) -> Fetched:
    """Return the sum of all that one worker has fetched."""
    counts = (sum(counts) for counts in zip(*(part[1:] for part in parts), strict=True))
    return Fetched(worker, *counts) if parts else nothing_of(worker)


def nothing_of(worker: int) -> Fetched:
    """Return zero counts, as before the first batch."""
    return Fetched(worker, *[0] * _COUNTS)


_COUNTS: Final = len(Fetched._fields) - 1


class WorkerCounts:
    """Words of shared memory; each worker writes only its own."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._words = memoryview(mmap.mmap(-1, workers * _WORDS * 8)).cast("Q")
        self._told = [nothing_of(worker) for worker in range(workers)]

    def add(self, fetched: Fetched) -> None:
        """Add newly fetched batches of a worker."""
        first = fetched.worker * _WORDS
        for at in reversed(range(_COUNTS)):  # The batch count is written after its times.
            if count := fetched[at + 1]:
                self._words[first + at] += count

    def grown(self) -> Iterator[Fetched]:
        """Yield the growth since the last call, for workers that fetched anything."""
        for worker in range(self._workers):
            before, now = self._told[worker], self._of(worker)
            if now != before:
                self._told[worker] = now
                _, *counts = (new - old for new, old in zip(now, before, strict=True))
                yield Fetched(worker, *counts)

    def forget(self) -> None:
        """Discard the growth so far."""
        self._told = [self._of(worker) for worker in range(self._workers)]

    def _of(self, worker: int) -> Fetched:
        at = worker * _WORDS
        return Fetched(worker, *self._words[at : at + _COUNTS].tolist())


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


_MOST_CLASSES: Final = 16
_MOST_OF_CLASS: Final = 4
"""Further data sets, beyond either limit, share one label."""


class LoaderLabels:
    """Labels of the data sets of this process."""

    def __init__(self) -> None:
        self._known: dict[str, list[Any]] = {}

    def of(self, dataset: object) -> str:
        """Return a label: ``CIFAR10``; ``CIFAR10 2`` for a second one at the same time."""
        text = safe_name_text(type(dataset).__name__)
        if text not in self._known and len(self._known) >= _MOST_CLASSES:
            return names.OTHER
        places = self._known.setdefault(text, [])
        number = _number(places, dataset)
        return text if number == 1 else f"{text} {number}"


def _number(places: list[Any], dataset: object) -> int:
    """Return its position among the data sets of its class, counted from one."""
    there = [place() for place in places]
    for at, known in enumerate(there):
        if known is dataset:
            return at + 1
    free = next((at for at, known in enumerate(there) if known is None), len(places))
    if free >= _MOST_OF_CLASS:
        return _MOST_OF_CLASS
    try:
        places[free : free + 1] = [weakref.ref(dataset)]
    except TypeError:  # A list, for example: it cannot be known whether it still exists.
        return 1
    return free + 1
