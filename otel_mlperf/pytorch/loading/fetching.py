"""What happens when a batch is fetched, in a worker or where it was asked for?"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf.pytorch.loading.gate import Call, Gate, Shared
from otel_mlperf.pytorch.loading.loader_figures import clock
from otel_mlperf.pytorch.loading.thread_use import ThreadUse
from otel_mlperf.pytorch.loading.worker_counts import Fetched
from otel_mlperf.recorder.core.faults import internal_error
from otel_mlperf.recorder.stepping.batch_size import count_elements

if TYPE_CHECKING:
    from types import FrameType

    from otel_mlperf.pytorch.loading.thread_use import Used

_FIRST: Final = 16
"""So many batches of an iterator, or of a worker, are looked at, what their samples hold."""
_EVERY: Final = 16
"""Then one in so many."""
_MOST_SAMPLES: Final = 16
"""Of a batch; more of them are looked at in steps."""


class Fetching(Gate):
    """A batch is fetched: in a worker, or where it was asked for."""

    name = "fetch"

    def _enter(self, subject: Any) -> Any:
        shared = self.shared
        if shared.thread.collates is not None:
            return None
        worker = shared.worker_id()
        if worker is not None:
            return _Fetch(shared, worker)
        asked = shared.thread.asked
        if asked is None or asked.pass_over():
            return None
        return _Fetch(shared, None)


class _Fetch(Call):
    __slots__ = ("_before", "_elements", "_items", "_use", "_worker")

    def __init__(self, shared: Shared, worker: int | None) -> None:
        self._worker = worker
        self._items: tuple[int, Used] | None = None
        """When it began to collate, and what the samples had used."""
        self._elements: int | None = None
        use = shared.thread.use
        if use is None:
            use = shared.thread.use = ThreadUse()
        self._use, self._before = use, use.read()
        super().__init__(shared)

    def __enter__(self) -> None:
        self.shared.thread.collates = self._collates

    def _collates(self, fetching: FrameType) -> None:
        """All samples are there, in the function that fetches them."""
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
        # In order, without names: half a microsecond of each batch.
        fetched = Fetched(
            self._worker or 0, 1, between_ns - self.began_ns, now_ns - between_ns, *used,
            elements is not None, elements or 0,
        )  # fmt: skip
        if self._worker is None:
            asked = shared.thread.asked
            if asked is not None:
                asked.fetched(fetched)
        elif shared.inherited is not None:
            shared.inherited.add(fetched)


def _count_all(samples: object) -> int | None:
    """Elements of all samples; None: one of them has none, or they are no list."""
    if not isinstance(samples, list):
        return None
    sizes = [count_elements(sample) for sample in samples[:: len(samples) // _MOST_SAMPLES + 1]]
    if None in sizes or not sizes:
        return None
    return sum(size or 0 for size in sizes) * len(samples) // len(sizes)


class CollateMoment:
    """``collate_fn`` of torch's fetchers: when is it looked up, which is right before it is called?

    It stays in the fetcher's own dictionary, and is handed out as it is: nothing is wrapped.
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
