"""Gates around the internal calls of a DataLoader.

Functions of torch are woven into one gate for each kind of call: creating an iterator, requesting a
batch, starting another pass; and fetching, collating or pinning a batch. Only the outermost call on
a thread counts, because a dataset may contain a loader itself. A loader is labelled with the class
of its dataset, followed by a number for a second dataset of the same class. The number of a deleted
dataset is reused, so labels stay the same from epoch to epoch.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Final

from otel_mlperf.pytorch.loading.loader_figures import (
    Fetched,
    LoaderFigures,
    LoaderLabels,
    Loaders,
    ThreadUse,
    clock,
    record_pinned,
)
from otel_mlperf.recorder.core.faults import internal_error
from otel_mlperf.recorder.stepping.batch_size import count_elements

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from otel_mlperf.pytorch.loading.loader_figures import Used, WorkerCounts

_UNSEEN = nullcontext()


class Thread(threading.local):
    """State of the gates in one thread."""

    asked: LoaderFigures | None = None
    """Figures of the iterator from which a batch is being requested; None outside requests."""
    collates: Callable[[FrameType], None] | None = None
    """Called when all samples of the batch that is being fetched exist; None outside fetches."""
    pins = False
    use: ThreadUse | None = None
    fetches = 0
    """Number of fetches since an iterator was created."""
    started: WorkerCounts | None = None
    """Counts of the iterator whose workers this thread is starting, or has started last."""


class Shared:
    """State shared by the gates.

    Args:
        worker_id: returns the number of this worker process; None if the process is no worker.
    """

    def __init__(self, worker_id: Callable[[], int | None]) -> None:
        self.thread, self.worker_id = Thread(), worker_id
        self.loaders, self.labels = Loaders(), LoaderLabels()
        self.inherited: WorkerCounts | None = None
        """Shared memory in which a worker counts; None if this process is no worker."""


class Gate:
    """Base class of gates, each of which observes one kind of call of a DataLoader."""

    name: ClassVar[str]

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self.busy = True

    def of(self, subject: Any) -> Any:
        """Return the context in which a call with ``subject`` runs; never raises."""
        began_ns = clock()
        try:
            return self._enter(subject) or _UNSEEN
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)
            return _UNSEEN
        finally:
            self.shared.loaders.own_ns += clock() - began_ns

    def _enter(self, subject: Any) -> Any:
        raise NotImplementedError


class Call:
    """Context of one observed call. An error while leaving it is reported, but not raised."""

    __slots__ = ("began_ns", "shared")

    def __init__(self, shared: Shared) -> None:
        self.shared, self.began_ns = shared, clock()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        left_ns = clock()
        try:
            self._leave(kind)
        except Exception as problem:  # noqa: BLE001 - recording never raises
            internal_error(problem)
        finally:
            self.shared.loaders.own_ns += clock() - left_ns

    def _leave(self, kind: type[BaseException] | None) -> None:
        raise NotImplementedError


_FIRST: Final = 16
"""Number of first batches, per iterator or worker, whose samples are always measured."""
_EVERY: Final = 16
"""Of later batches, the samples of one in this many are measured."""
_MAX_SAMPLES: Final = 16
"""Maximum number of samples measured in a batch; of larger batches, every n-th is measured."""


class Fetching(Gate):
    """Gate for fetching a batch: in a worker, or in the process that requested it."""

    name = "fetch"

    def _enter(self, subject: Any) -> Any:
        shared = self.shared
        thread = shared.thread
        if thread.collates is not None:
            return None
        figures = thread.asked
        if figures is not None:
            return None if figures.pass_over() else _Fetch(shared, None)
        worker = shared.worker_id()
        return None if worker is None else _Fetch(shared, worker)


class _Fetch(Call):
    __slots__ = ("_before", "_elements", "_items", "_use", "_worker")

    def __init__(self, shared: Shared, worker: int | None) -> None:
        self._worker = worker
        self._items: tuple[int, Used] | None = None
        """Time at which collating started, and CPU use for fetching the samples."""
        self._elements: int | None = None
        use = shared.thread.use
        if use is None:
            use = shared.thread.use = ThreadUse()
        self._use, self._before = use, use.read()
        super().__init__(shared)

    def __enter__(self) -> None:
        self.shared.thread.collates = self._collates

    def _collates(self, fetching: FrameType) -> None:
        """Note that all samples exist; ``fetching`` is the frame that fetches the samples."""
        now_ns, thread = clock(), self.shared.thread
        self._items = now_ns, self._use.read().since(self._before)
        if thread.fetches < _FIRST or thread.fetches % _EVERY == 0:
            self._elements = _count_all(fetching.f_locals.get("data"))
        thread.fetches += 1
        self.shared.loaders.own_ns += clock() - now_ns

    def _leave(self, kind: type[BaseException] | None) -> None:
        now_ns, shared = clock(), self.shared
        shared.thread.collates = None
        if kind is not None:
            return
        between_ns, used = self._items or (now_ns, self._use.read().since(self._before))
        elements = self._elements
        # Positional arguments: keyword arguments would cost half a microsecond more per batch.
        fetched = Fetched(
            self._worker or 0, 1, between_ns - self.began_ns, now_ns - between_ns, *used,
            elements is not None, elements or 0,
        )  # fmt: skip
        if self._worker is None:
            figures = shared.thread.asked
            if figures is not None:
                figures.fetched(fetched)
        elif shared.inherited is not None:
            shared.inherited.add(fetched)


def _count_all(samples: object) -> int | None:
    """Estimate the number of elements of all samples; None if it is unknown for a sample."""
    if not isinstance(samples, list):
        return None
    sizes = [count_elements(sample) for sample in samples[:: len(samples) // _MAX_SAMPLES + 1]]
    if None in sizes or not sizes:
        return None
    return sum(size or 0 for size in sizes) * len(samples) // len(sizes)


class CollateMoment:
    """Descriptor for ``collate_fn`` of torch's fetchers, which marks the start of collating.

    A fetcher reads the attribute right before it calls the function. The function stays in the
    fetcher's ``__dict__`` and is returned unchanged: nothing is wrapped.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def __get__(self, fetcher: Any, kind: type | None = None) -> Any:
        if fetcher is None:
            return self
        collates = self._shared.thread.collates
        if collates is not None:
            try:
                collates(sys._getframe(1))
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


class Made(Gate):
    """Gate for creating an iterator; the workers start right afterwards, on the same thread."""

    name = "iterator"

    def _enter(self, subject: Any) -> Any:
        shared = self.shared
        return None if shared.thread.asked is not None else _Making(shared, subject)


class _Making(Call):
    __slots__ = ("_iterator",)

    def __init__(self, shared: Shared, iterator: Any) -> None:
        super().__init__(shared)
        self._iterator = iterator

    def _leave(self, kind: type[BaseException] | None) -> None:
        if kind is None:
            iterator, shared = self._iterator, self.shared
            label = shared.labels.of(iterator._dataset)
            figures = LoaderFigures(label, iterator._num_workers, self.began_ns)
            shared.loaders.add(iterator, figures)
            shared.thread.started, shared.thread.fetches = figures.counts, 0


class Passed(Gate):
    """Gate for the start of an iterator's first pass, or of another pass with the same workers."""

    name = "pass"

    def _enter(self, subject: Any) -> Any:
        iterator, is_first = subject
        figures = self.shared.loaders.of(iterator)
        if is_first:
            self.shared.thread.started = None  # all workers are started; later forks are no workers
        elif figures is not None:
            figures.goes_on(clock())
        return None


class Asked(Gate):
    """Gate for the request of an iterator's next batch by the user's program."""

    name = "ask"

    def _enter(self, subject: Any) -> Any:
        shared = self.shared
        if shared.thread.asked is not None:
            return None
        figures = shared.loaders.of(subject)
        return None if figures is None else _Request(shared, subject, figures)


class _Request(Call):
    __slots__ = ("_figures", "_ready")

    def __init__(self, shared: Shared, iterator: Any, figures: LoaderFigures) -> None:
        self._figures = figures
        self._ready = None if figures.counts is None else _count_ready(iterator)
        self.shared, self.began_ns = shared, clock()  # `super()` would be a call

    def __enter__(self) -> None:
        self.shared.thread.asked = self._figures

    def _leave(self, kind: type[BaseException] | None) -> None:
        now_ns, shared = clock(), self.shared
        shared.thread.asked = None
        if kind is None:
            self._figures.given(self.began_ns, now_ns, self._ready)
        if kind is StopIteration:
            self._figures.ended(self.began_ns, now_ns)
            shared.loaders.tell()
        elif now_ns >= shared.loaders.due_ns:
            shared.loaders.look(now_ns)


def _count_ready(iterator: Any) -> int:
    """Return the number of batches in the queue, or received but waiting for an earlier batch."""
    waiting = sum(len(task) == 2 for task in iterator._task_info.values())
    return waiting + int(iterator._data_queue.qsize())


class Pinning(Gate):
    """Gate for copying a batch into pinned memory; nested calls are part of the outer call."""

    name = "pin"

    def _enter(self, subject: Any) -> Any:
        return None if self.shared.thread.pins else _Pin(self.shared)


class _Pin(Call):
    __slots__ = ()

    def __enter__(self) -> None:
        self.shared.thread.pins = True

    def _leave(self, kind: type[BaseException] | None) -> None:
        self.shared.thread.pins = False
        if kind is None:
            record_pinned(clock() - self.began_ns)


class LoaderGates(Shared):
    """Gates of loaders, with their shared state.

    Args:
        worker_id: returns the number of this worker process; None if the process is no worker.
    """

    def __init__(self, worker_id: Callable[[], int | None]) -> None:
        super().__init__(worker_id)
        self._pid = os.getpid()
        self.all: tuple[Gate, ...] = (
            Made(self),
            Passed(self),
            Asked(self),
            Fetching(self),
            Pinning(self),
        )
        self.made, self.passed, self.asked, self.fetching, self.pinning = self.all

    def switch(self, *, is_off: bool) -> None:
        """Switch all gates off, or on again."""
        for gate in self.all:
            gate.busy = is_off

    def in_child(self) -> None:
        """In a forked child, switch the gates off; a loader worker keeps the gate of fetches on."""
        pid = os.getpid()
        if self._pid != pid:
            started = None if self.fetching.busy else self.thread.started
            thread, loaders = Thread(), Loaders()
            # One assignment without a call in between: an interrupt cannot leave it half done.
            self.inherited, self.thread, self.loaders, self._pid = started, thread, loaders, pid
        self.switch(is_off=True)
        self.fetching.busy = self.inherited is None
