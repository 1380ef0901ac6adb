"""Detection of CUDA graph captures in any thread.

A capture in the usual mode (``global``) fails if any thread queries a CUDA event. CUDA reports no
captures of other threads. Captures are therefore detected where ``torch.cuda.graph`` is entered and
left; direct calls of ``CUDAGraph.capture_begin`` are not detected.
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
    """Idents of threads that capture a CUDA graph, and a lock for which new captures wait."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.threads: set[int] = set()


class CaptureMoment(AbstractContextManager[None]):
    """Observer of torch's calls that start a CUDA graph capture, or of those that end one.

    Args:
        captures: updated at each of these calls.
        is_begin: whether the observed calls start a capture; otherwise they end one.
    """

    busy: Final = False

    def __init__(self, captures: Captures, *, is_begin: bool) -> None:
        self._captures, self._is_begin = captures, is_begin

    def of(self, _subject: object) -> CaptureMoment:
        """Return this object as a call's context manager, because it treats all captures alike."""
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
    """Update ``captures`` whenever ``kind``, torch's class of a capture, is entered or left."""
    for end, is_begin in ((kind.__enter__, True), (kind.__exit__, False)):
        moment = CaptureMoment(captures, is_begin=is_begin)
        name = f"{_GATE}_{'begin' if is_begin else 'end'}"
        see("a captured graph", lambda end=end, moment=moment, name=name: weave(end, moment, name))  # type: ignore[misc]
