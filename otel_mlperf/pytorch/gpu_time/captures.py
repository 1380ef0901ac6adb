"""Detection of CUDA graph captures in any thread.

During a capture in the usual mode (``global``), no thread may query a CUDA event: the capture would
fail. CUDA does not report captures of other threads. They are therefore detected where
``torch.cuda.graph`` starts and ends; direct calls of ``CUDAGraph.capture_begin`` are not detected.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, suppress
from typing import Any, Final

from otel_mlperf.pytorch.loop.weave import see, weave
from otel_mlperf.recorder.core.thread_ident import get_ident

_GATE: Final = "_otel_mlperf_capture"
_WAIT_S: Final = 1.0
"""Maximum seconds that a capture waits for a stamp being recorded (usually microseconds)."""


class Captures:
    """Idents of threads that capture a CUDA graph, and a lock that delays starts of captures."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.threads: set[int] = set()


class CaptureMoment(AbstractContextManager[None]):
    """Gate around the calls with which torch starts, or ends, a CUDA graph capture.

    Args:
        captures: updated by the gate.
        is_begin: whether this is the gate of the start, otherwise of the end.
    """

    busy: Final = False

    def __init__(self, captures: Captures, *, is_begin: bool) -> None:
        self._captures, self._is_begin = captures, is_begin

    def of(self, _subject: object) -> CaptureMoment:
        """Return this gate, because it treats all captures alike."""
        return self

    def __enter__(self) -> None:
        if not self._is_begin:
            return
        captures = self._captures
        has_lock = captures.lock.acquire(timeout=_WAIT_S)
        captures.threads.add(get_ident())
        if has_lock:
            captures.lock.release()

    def __exit__(self, kind: Any, *_failure: object) -> None:
        if not self._is_begin or kind is not None:
            self._captures.threads.discard(get_ident())


_captures: Captures | None = None


def watch_captures(cuda: Any) -> Captures:
    """Start detecting the captures of ``torch.cuda``, once per process; never raises."""
    global _captures
    if _captures is None:
        _captures = Captures()
        with suppress(AttributeError):  # a torch without CUDA graphs
            weave_graph(cuda.graphs.graph, _captures)
    return _captures


def weave_graph(kind: Any, captures: Captures) -> None:
    """Update ``captures`` when ``kind``, a context manager of captures, is entered or left."""
    for end, is_begin in ((kind.__enter__, True), (kind.__exit__, False)):
        moment = CaptureMoment(captures, is_begin=is_begin)
        name = f"{_GATE}_{'begin' if is_begin else 'end'}"
        see("a captured graph", lambda end=end, moment=moment, name=name: weave(end, moment, name))  # type: ignore[misc]
