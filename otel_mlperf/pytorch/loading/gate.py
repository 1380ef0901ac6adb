"""What is every gate around a call inside a DataLoader, and what do gates share?

Only the outermost call counts on a thread: a dataset may have a loader of its own.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

from otel_mlperf.pytorch.loading.loader_figures import Loaders, clock
from otel_mlperf.pytorch.loading.loader_labels import LoaderLabels
from otel_mlperf.recorder.core.faults import internal_error

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from otel_mlperf.pytorch.loading.loader_figures import LoaderFigures
    from otel_mlperf.pytorch.loading.thread_use import ThreadUse
    from otel_mlperf.pytorch.loading.worker_counts import WorkerCounts

_UNSEEN = nullcontext()


class Thread(threading.local):
    """What one thread is in."""

    asked: LoaderFigures | None = None
    """Of the iterator that is being asked for a batch."""
    collates: Callable[[FrameType], None] | None = None
    """To be called when the samples of the batch are there that is being fetched."""
    pins = False
    use: ThreadUse | None = None
    fetches = 0
    """Since an iterator was made."""
    started: WorkerCounts | None = None
    """Of the iterator whose workers this thread starts, or started last."""


class Shared:
    """What gates know of each other.

    Args:
        worker_id: the number of the worker that this process is; None: it is none.
    """

    def __init__(self, worker_id: Callable[[], int | None]) -> None:
        self.thread, self.worker_id = Thread(), worker_id
        self.loaders, self.labels = Loaders(), LoaderLabels()
        self.inherited: WorkerCounts | None = None
        """In a worker: where it counts."""


class Gate:
    """One kind of call."""

    name: ClassVar[str]

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
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
            self.shared.loaders.own_ns += clock() - began_ns

    def _enter(self, subject: Any) -> Any:
        raise NotImplementedError


class Call:
    """One call; what is done at its end must not raise."""

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
