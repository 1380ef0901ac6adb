"""Line profile of one call of a function, by the optional package ``line_profiler``.

``line_profiler`` replaces the code of the profiled function. The profiled call therefore runs a
copy, and the program's function stays unchanged.
"""

from __future__ import annotations

import importlib
import sys
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf.recorder.core.thread_ident import get_ident
from otel_mlperf.recorder.sections.call_profile import CallProfile, why_not_loaded

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.run_files.hot_file import HotSpot

_TRACED: Final = "a debugger or another tracer was active"
_PACKAGE: Final = "line_profiler"


def why_no_lines() -> str:
    """Return why ``line_profiler`` cannot be imported, and the remedy; an empty text if it can."""
    why = why_not_loaded(_PACKAGE)
    return why and f"{why}: pip install 'otel-mlperf[lines]'"


class LineProfile(CallProfile):
    """Line profile of one function, by ``line_profiler``."""

    kind = "lines"
    another = _TRACED

    def __init__(self) -> None:
        super().__init__()
        self._profiler: Any = importlib.import_module(_PACKAGE).LineProfiler()
        self._function: Callable[..., Any] | None = None
        self._copy: Any = None
        self._tracer: Any = None
        self._is_on = False

    def in_place_of(self, function: Any) -> Any:
        """Return a profiled copy of the first function; any other function unchanged."""
        if not self._is_on or self._thread != get_ident():
            return function
        if self._copy is None:
            copy = _copied(function)
            self._profiler.add_function(copy)
            self._function, self._copy = function, copy
        return self._copy if function is self._function else function

    def _on(self) -> bool:
        if _is_traced():
            return False
        self._is_on = True  # first: an interrupt after ``enable`` must lead to ``disable``
        self._profiler.enable()
        self._tracer = sys.gettrace()
        return True

    def _take(self) -> bool:
        return sys.gettrace() is self._tracer

    def off(self) -> None:
        """Switch the profiler off, if called in the thread in which it is on.

        Other threads cannot switch it off: it stays on until the profiled call ends.
        """
        if not self._is_on or self._thread != get_ident():
            return
        program_tracer = sys.gettrace()
        self._profiler.disable()
        if (
            program_tracer is not None
            and program_tracer is not self._tracer
            and self._tracer is not None
        ):
            sys.settrace(program_tracer)  # the program set it during the call
        self._is_on = False

    def spots(self) -> list[HotSpot]:
        """Return the executed lines, sorted by time, which includes calls made by the line."""
        from otel_mlperf.run_files.hot_file import HotSpot

        stats = self._profiler.get_stats()
        seen = []
        for (file, _, name), lines in stats.timings.items():
            for line, runs, spent in lines:
                ns = round(spent * stats.unit * 1e9)
                about = {"name": name, "file": file, "line": line}
                seen.append(HotSpot(**about, calls=runs, own_ns=ns, total_ns=ns))
        return sorted(seen, key=lambda spot: -spot.own_ns)


def _is_traced() -> bool:
    """Return whether a tracer is on or, since Python 3.12, another tool uses the profiler id."""
    monitoring: Any = getattr(sys, "monitoring", None)
    if monitoring is not None and monitoring.get_tool(monitoring.PROFILER_ID) is not None:
        return True
    return sys.gettrace() is not None


def _copied(function: FunctionType) -> FunctionType:
    copy = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__qualname__ = function.__qualname__
    return copy
