"""What happens around the calls inside a DataLoader that torch lets us see?

An iterator is made, is asked for a batch, or begins another pass; in it, or in one of its workers,
a batch is fetched, collated, pinned. Each is a gate that a function of torch is woven into. Only
the outermost counts on a thread: a dataset may have a loader of its own.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Final

from otel_mlperf.pytorch.loading.loader_figures import (
    LoaderFigures,
    Loaders,
    clock,
    record_pinned,
)
from otel_mlperf.pytorch.loading.loader_labels import LoaderLabels
from otel_mlperf.pytorch.loading.thread_use import ThreadUse
from otel_mlperf.pytorch.loading.worker_counts import Fetched
from otel_mlperf.recorder.core.faults import internal_error
from otel_mlperf.recorder.stepping.batch_size import count_elements

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from otel_mlperf.pytorch.loading.thread_use import Used
    from otel_mlperf.pytorch.loading.worker_counts import WorkerCounts

_UNSEEN = nullcontext()
_FIRST: Final = 16
"""So many batches of an iterator, or of a worker, are looked at, what their samples hold."""
_EVERY: Final = 16
"""Then one in so many."""
_MOST_SAMPLES: Final = 16
"""Of a batch; more of them are looked at in steps."""


class _Thread(threading.local):
    """What one thread is in."""

    ask: _Ask | None = None
    fetch: _Fetch | None = None
    pins = False
    use: ThreadUse | None = None
    fetches = 0
    """Since an iterator was made."""
    started: WorkerCounts | None = None
    """Of the iterator whose workers this thread starts, or started last."""


class LoaderGates:
    """The gates, and what they share.

    Args:
        worker_id: the number of the worker that this process is; None: it is none.
    """

    def __init__(self, worker_id: Callable[[], int | None]) -> None:
        self.thread, self.worker_id = _Thread(), worker_id
        self.loaders, self.labels = Loaders(), LoaderLabels()
        self.inherited: WorkerCounts | None = None
        """In a worker: where it counts."""
        self._pid = os.getpid()
        self.all: tuple[_Gate, ...] = (
            Made(self),
            Passed(self),
            Asked(self),
            Fetching(self),
            Pinning(self),
        )
        self.made, self.passed, self.asked, self.fetching, self.pinning = self.all

    def switch(self, *, is_off: bool) -> None:
        """Whether nothing is seen from now on."""
        for gate in self.all:
            gate.busy = is_off

    def in_child(self) -> None:
        """This process was forked: if it is a worker it counts for its parent, and no more."""
        pid = os.getpid()
        if self._pid != pid:
            started = None if self.fetching.busy else self.thread.started
            thread, loaders = _Thread(), Loaders()
            # No call in between: whoever is interrupted does either all of it again, or nothing.
            self.inherited, self.thread, self.loaders, self._pid = started, thread, loaders, pid
        self.switch(is_off=True)
        self.fetching.busy = self.inherited is None


class _Gate:
    """One kind of call."""

    name: ClassVar[str]

    def __init__(self, gates: LoaderGates) -> None:
        self._gates = gates
        self.busy = True

    def of(self, subject: Any) -> Any:
        """What the call runs in."""
        began_ns = clock()
        try:
            return self._enter(subject) or _UNSEEN
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)
            return _UNSEEN
        finally:
            self._gates.loaders.own_ns += clock() - began_ns

    def _enter(self, subject: Any) -> Any:
        raise NotImplementedError


class _Call:
    """One call; what is done at its end must not raise."""

    __slots__ = ("_gates", "began_ns")

    def __init__(self, gates: LoaderGates) -> None:
        self._gates, self.began_ns = gates, clock()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        left_ns = clock()
        try:
            self._leave(kind)
        except Exception as problem:  # noqa: BLE001 - recording never raises
            internal_error(problem)
        finally:
            self._gates.loaders.own_ns += clock() - left_ns

    def _leave(self, kind: type[BaseException] | None) -> None:
        raise NotImplementedError


class Made(_Gate):
    """An iterator is made; its workers are started right after this, on the same thread."""

    name = "iterator"

    def _enter(self, subject: Any) -> Any:
        gates = self._gates
        return None if gates.thread.ask is not None else _Making(gates, subject)


class _Making(_Call):
    __slots__ = ("_iterator",)

    def __init__(self, gates: LoaderGates, iterator: Any) -> None:
        super().__init__(gates)
        self._iterator = iterator

    def _leave(self, kind: type[BaseException] | None) -> None:
        if kind is None:
            iterator, gates = self._iterator, self._gates
            label = gates.labels.of(iterator._dataset)
            figures = LoaderFigures(label, iterator._num_workers, self.began_ns)
            gates.loaders.add(iterator, figures)
            gates.thread.started, gates.thread.fetches = figures.counts, 0


class Passed(_Gate):
    """A pass begins: the first with the workers that were started for it, or another."""

    name = "pass"

    def _enter(self, subject: Any) -> Any:
        iterator, is_first = subject
        figures = self._gates.loaders.of(iterator)
        if is_first:
            self._gates.thread.started = None  # all are; what is forked from here on is none
        elif figures is not None:
            figures.goes_on(clock())
        return None


class Asked(_Gate):
    """A program asks an iterator for its next batch."""

    name = "ask"

    def _enter(self, subject: Any) -> Any:
        gates = self._gates
        figures = gates.loaders.of(subject) if gates.thread.ask is None else None
        return None if figures is None else _Ask(gates, subject, figures)


class _Ask(_Call):
    __slots__ = ("_ready", "figures")

    def __init__(self, gates: LoaderGates, iterator: Any, figures: LoaderFigures) -> None:
        self.figures = figures
        self._ready = None if figures.counts is None else _count_ready(iterator)
        super().__init__(gates)

    def __enter__(self) -> None:
        self._gates.thread.ask = self

    def _leave(self, kind: type[BaseException] | None) -> None:
        now_ns, gates = clock(), self._gates
        gates.thread.ask = None
        if kind is None:
            self.figures.given(self.began_ns, now_ns, self._ready)
        if kind is StopIteration:
            self.figures.ended(self.began_ns, now_ns)
            gates.loaders.tell()
        else:
            gates.loaders.look(now_ns)


def _count_ready(iterator: Any) -> int:
    """Batches that are there: in the queue, or read and waiting for an earlier one."""
    waiting = sum(len(task) == 2 for task in iterator._task_info.values())
    return waiting + int(iterator._data_queue.qsize())


class Fetching(_Gate):
    """A batch is fetched: in a worker, or where it was asked for."""

    name = "fetch"

    def _enter(self, subject: Any) -> Any:
        gates = self._gates
        if gates.thread.fetch is not None:
            return None
        worker = gates.worker_id()
        if worker is None and gates.thread.ask is None:
            return None
        return _Fetch(gates, worker)


class _Fetch(_Call):
    __slots__ = ("_before", "_elements", "_items", "_use", "_worker")

    def __init__(self, gates: LoaderGates, worker: int | None) -> None:
        self._worker = worker
        self._items: tuple[int, Used] | None = None
        """When it began to collate, and what the samples had used."""
        self._elements: int | None = None
        use = gates.thread.use
        if use is None:
            use = gates.thread.use = ThreadUse()
        self._use, self._before = use, use.read()
        super().__init__(gates)

    def __enter__(self) -> None:
        self._gates.thread.fetch = self

    def collates(self, fetching: FrameType) -> None:
        """All samples are there, in the function that fetches them."""
        now_ns, thread = clock(), self._gates.thread
        self._items = now_ns, self._use.read().since(self._before)
        if thread.fetches < _FIRST or thread.fetches % _EVERY == 0:
            self._elements = _count_all(fetching.f_locals.get("data"))
        thread.fetches += 1
        self._gates.loaders.own_ns += clock() - now_ns

    def _leave(self, kind: type[BaseException] | None) -> None:
        now_ns, gates = clock(), self._gates
        gates.thread.fetch = None
        if kind is not None:
            return
        between_ns, used = self._items or (now_ns, self._use.read().since(self._before))
        elements = self._elements
        # In order, without names: half a microsecond of each batch.
        fetched = Fetched(
            self._worker or 0, 1, between_ns - self.began_ns, now_ns - between_ns, *used,
            elements is not None, elements or 0,
        )  # fmt: skip
        if self._worker is None:
            ask = gates.thread.ask
            if ask is not None:
                ask.figures.fetched(fetched)
        elif gates.inherited is not None:
            gates.inherited.add(fetched)


def _count_all(samples: object) -> int | None:
    """Elements of all samples; None: one of them has none, or they are no list."""
    if not isinstance(samples, list):
        return None
    sizes = [count_elements(sample) for sample in samples[:: len(samples) // _MOST_SAMPLES + 1]]
    if None in sizes or not sizes:
        return None
    return sum(size or 0 for size in sizes) * len(samples) // len(sizes)


class Pinning(_Gate):
    """A batch is copied into pinned memory; it holds others, which are part of that."""

    name = "pin"

    def _enter(self, subject: Any) -> Any:
        return None if self._gates.thread.pins else _Pin(self._gates)


class _Pin(_Call):
    __slots__ = ()

    def __enter__(self) -> None:
        self._gates.thread.pins = True

    def _leave(self, kind: type[BaseException] | None) -> None:
        self._gates.thread.pins = False
        if kind is None:
            record_pinned(clock() - self.began_ns)


class CollateMoment:
    """``collate_fn`` of torch's fetchers: when is it looked up, which is right before it is called?

    It stays in the fetcher's own dictionary, and is handed out as it is: nothing is wrapped.
    """

    def __init__(self, gates: LoaderGates) -> None:
        self._gates = gates

    def __get__(self, fetcher: Any, kind: type | None = None) -> Any:
        if fetcher is None:
            return self
        fetch = self._gates.thread.fetch
        if fetch is not None:
            try:
                fetch.collates(sys._getframe(1))
            except Exception as error:  # noqa: BLE001 - recording never raises
                internal_error(error)
        try:
            return fetcher.__dict__["collate_fn"]
        except KeyError:
            text = f"{type(fetcher).__name__!r} object has no attribute 'collate_fn'"
            raise AttributeError(text, name="collate_fn", obj=fetcher) from None

    def __set__(self, fetcher: Any, collate: Any) -> None:
        fetcher.__dict__["collate_fn"] = collate

    def __delete__(self, fetcher: Any) -> None:
        del fetcher.__dict__["collate_fn"]
