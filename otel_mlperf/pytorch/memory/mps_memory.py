"""Memory of tensors on Apple's GPU (MPS), as ``torch.mps`` accounts for it.

Memory is read when a step starts, at most four times a second. Querying torch for MPS initialises
Metal, which a forked child must not use afterwards. Memory is therefore read only once the program
itself has made that query (``torch.backends.mps.is_available()``).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names
from otel_mlperf.foreign_errors import is_foreign
from otel_mlperf.recorder.api.start import at_begin
from otel_mlperf.recorder.core.faults import warn_once

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.recorder.lifecycle.recorder import Recorder
    from otel_mlperf.recorder.lifecycle.run import Run

_EVERY_NS: Final = 250_000_000


def loaded_mps() -> Any:
    """Return ``torch.mps`` if the program has queried MPS and MPS is available; else None."""
    torch = sys.modules.get("torch")
    backend: Any = getattr(getattr(torch, "backends", None), "mps", None)
    cache = getattr(getattr(backend, "is_available", None), "cache_info", None)
    # torch caches the answer: an entry in the cache means that the program has made the query.
    return torch.mps if torch and cache and cache().currsize and backend.is_available() else None


class MpsMemory:
    """Reader of MPS memory in one run's process.

    Args:
        recorder: recorder of the run.
        find_mps: returns ``torch.mps`` once the program uses it, until then None.
    """

    def __init__(self, recorder: Recorder, find_mps: Callable[[], Any] = loaded_mps) -> None:
        self._cells, self._find_mps = recorder.cells, find_mps
        self._due_ns = 0
        self._is_broken = False

    def look(self, now_ns: int) -> None:
        """Read the memory if due; only exceptions of the user's signal handlers propagate."""
        if now_ns < self._due_ns or self._is_broken:
            return
        self._due_ns = now_ns + _EVERY_NS
        try:
            if mps := self._find_mps():
                self._set(names.MPS_MEMORY, mps.current_allocated_memory())
                self._set(names.MPS_DRIVER_MEMORY, mps.driver_allocated_memory())
        except Exception as error:
            if is_foreign(error):
                raise
            self._is_broken = True  # a version of torch that behaves differently
            warn_once("the memory of MPS cannot be read: %s: %s", type(error).__name__, error)

    def _set(self, metric: names.Metric, size: int) -> None:
        self._cells.set(metric.name, metric.unit, size)


def _begin(run: Run) -> None:
    recorder = run._recorder
    if recorder is not None and recorder.config.reads("allocator"):
        recorder.stepping.now_and_then.append(MpsMemory(recorder).look)


at_begin.append(_begin)
