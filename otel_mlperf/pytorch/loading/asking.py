"""What happens when an iterator of a loader is made, asked for a batch, and begins another pass?"""

from __future__ import annotations

from typing import Any

from otel_mlperf.pytorch.loading.gate import Call, Gate, Shared
from otel_mlperf.pytorch.loading.loader_figures import LoaderFigures, clock, record_pinned


class Made(Gate):
    """An iterator is made; its workers are started right after this, on the same thread."""

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
    """A pass begins: the first with the workers that were started for it, or another."""

    name = "pass"

    def _enter(self, subject: Any) -> Any:
        iterator, is_first = subject
        figures = self.shared.loaders.of(iterator)
        if is_first:
            self.shared.thread.started = None  # all are; what is forked from here on is none
        elif figures is not None:
            figures.goes_on(clock())
        return None


class Asked(Gate):
    """A program asks an iterator for its next batch."""

    name = "ask"

    def _enter(self, subject: Any) -> Any:
        shared = self.shared
        figures = shared.loaders.of(subject) if shared.thread.asked is None else None
        return None if figures is None else _Ask(shared, subject, figures)


class _Ask(Call):
    __slots__ = ("_figures", "_ready")

    def __init__(self, shared: Shared, iterator: Any, figures: LoaderFigures) -> None:
        self._figures = figures
        self._ready = None if figures.counts is None else _count_ready(iterator)
        super().__init__(shared)

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
        else:
            shared.loaders.look(now_ns)


def _count_ready(iterator: Any) -> int:
    """Batches that are there: in the queue, or read and waiting for an earlier one."""
    waiting = sum(len(task) == 2 for task in iterator._task_info.values())
    return waiting + int(iterator._data_queue.qsize())


class Pinning(Gate):
    """A batch is copied into pinned memory; it holds others, which are part of that."""

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
