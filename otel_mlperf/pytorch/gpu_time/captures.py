"""Detection of CUDA graph captures in any thread.

During a capture no event may be queried, in any thread: a capture of the usual mode (``global``)
fails when any other thread queries one. CUDA does not report a capture in another thread. So it is
detected where ``torch.cuda.graph`` starts and ends; direct calls of ``CUDAGraph.capture_begin``
are not detected.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, suppress
from typing import Any, Final

from otel_mlperf.pytorch.loop.weave import see, weave
from otel_mlperf.recorder.core.thread_ident import get_ident

_GATE: Final = "_otel_mlperf_capture"
_WAIT_S: Final = 1.0
"""Maximum wait of a capture for a stamp that is being recorded, in seconds: microseconds are
usual.
"""


class Captures:
    """The threads that capture, and the lock that delays a capture while events are queried."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """Locked while events are recorded and queried."""
        self.threads: set[int] = set()


class CaptureMoment(AbstractContextManager[None]):
    """Gate of one end of captures.

    Args:
        captures: updated by the gate.
        is_begin: whether captures start here; otherwise they end.
    """

    busy: Final = False

    def __init__(self, captures: Captures, *, is_begin: bool) -> None:
        self._captures, self._is_begin = captures, is_begin

    def of(self, _subject: object) -> CaptureMoment:
        """Return the gate for a call in this thread."""
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
    """Detect the captures of ``torch.cuda`` from now on; never raises. Once in a process."""
    global _captures
    if _captures is None:
        _captures = Captures()
        with suppress(AttributeError):  # a torch without graphs captures none
            weave_graph(cuda.graphs.graph, _captures)
    return _captures


def weave_graph(kind: Any, captures: Captures) -> None:
    """Let both ends of a class of captures update ``captures``."""
    for end, is_begin in ((kind.__enter__, True), (kind.__exit__, False)):
        moment = CaptureMoment(captures, is_begin=is_begin)
        name = f"{_GATE}_{'begin' if is_begin else 'end'}"
        see("a captured graph", lambda end=end, moment=moment, name=name: weave(end, moment, name))  # type: ignore[misc]
