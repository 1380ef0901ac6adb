"""Profile of one call of a section, and the profile of called functions by cProfile.

``line_profile`` and ``allocation_profile`` contain the other kinds of profile. A profiler of the
program that is already on is never replaced. ``off`` is idempotent and always leaves the recorder's
profiler off. The writer of profiles is imported with the first profile, so that importing the
package does not load msgspec.
"""

from __future__ import annotations

import functools
import importlib
import sys
import time
from collections import Counter, defaultdict
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Final

from otel_mlperf.foreign_errors import is_foreign, raise_foreign
from otel_mlperf.recorder.core.thread_ident import get_ident
from otel_mlperf.recorder.core.turns import current_turn, is_same_turn

if TYPE_CHECKING:
    from types import CodeType

    from otel_mlperf.run_files.hot_file import HotSpot, Kind

ANOTHER: Final = "another profiler was active"
REPLACED: Final = "another profiler replaced it during the call"
OTHER_THREAD: Final = "the call ended in another thread"
OTHER_TASKS_RAN: Final = "the call awaited, and other tasks ran in its thread"
OURS: Final = __file__.rpartition("/recorder/")[0]
_COMPILE_CHECKS: Final = ("is_dynamo_compiling", "is_compiling")
"""Functions of torch by which ``span`` checks whether torch is compiling the call of ``span``."""
_PER_THREAD: Final = sys.version_info < (3, 12)
"""Before Python 3.12 a profiler belongs to a thread; since then to the interpreter, so that any
thread can switch it off.
"""


@functools.cache
def why_not_loaded(package: str) -> str:
    """Import a profiler's package; return why that failed, or an empty text."""
    try:
        importlib.import_module(package)
    except Exception as error:  # noqa: BLE001 - a package may raise anything on import
        raise_foreign(error)
        return f"{package} cannot be loaded ({error})"
    return ""


class CallProfile:
    """Profiler of one call, from ``begin`` to ``end``.

    ``left_out`` is the reason why there is no profile, or empty. ``kept_bytes`` is the size of the
    allocations that were not freed.
    """

    kind: ClassVar[Kind]
    another: ClassVar[str] = ANOTHER
    """Reason stored in ``left_out`` if the profiler cannot be switched on."""

    def __init__(self) -> None:
        self.left_out = ""
        self.has_started = False
        self.duration_ns = self.kept_bytes = self.peak_bytes = 0
        self._thread, self._turn = get_ident(), current_turn()
        self._t0 = 0

    def begin(self) -> None:
        """Switch the profiler on, unless another profiler is on."""
        self._t0 = time.monotonic_ns()
        self.has_started = self._on()
        if not self.has_started:
            self.left_out = self.another

    def end(self) -> None:
        """Read the results and switch the profiler off; idempotent."""
        if not self.has_started or self.duration_ns:
            return
        self.duration_ns = time.monotonic_ns() - self._t0
        try:
            if not self._take():
                self.left_out = REPLACED
        finally:
            self.off()
        if self._thread != get_ident():
            self.left_out = OTHER_THREAD
        elif not is_same_turn(self._turn, current_turn()):
            self.left_out = OTHER_TASKS_RAN

    def off(self) -> None:
        """Switch the profiler off, if it is on."""
        raise NotImplementedError

    def in_place_of(self, function: Any) -> Any:
        """Return the function to call instead of ``function``; by default the same one."""
        return function

    def spots(self) -> list[HotSpot]:
        """Return the profile's functions or lines, the largest first."""
        raise NotImplementedError

    def _on(self) -> bool:
        raise NotImplementedError

    def _take(self) -> bool:
        raise NotImplementedError


class FunctionProfile(CallProfile):
    """Profile of called functions, by cProfile."""

    kind = "calls"

    def __init__(self) -> None:
        super().__init__()
        import cProfile

        self._profiler: Any = cProfile.Profile()

    def _on(self) -> bool:
        if sys.getprofile() is not None:
            return False  # before Python 3.12, ``enable`` would replace that profiler
        try:
            self._profiler.enable()
        except ValueError as error:
            if is_foreign(error):
                raise
            return False
        return True

    def _take(self) -> bool:
        if not _PER_THREAD or sys.getprofile() is self._profiler:
            self.off()
            return True
        if self._thread == get_ident():
            _replaced.append(self._profiler)
        return False

    def off(self) -> None:
        """Switch the profiler off.

        Before Python 3.12, if called in another thread, this takes effect when the profiled thread
        next calls a function.
        """
        if not _PER_THREAD or sys.getprofile() is self._profiler:
            self._profiler.disable()
        elif self._thread != get_ident():
            # A thread cannot switch off another thread's profiler. Replace the profiler's timer by
            # a function that switches it off at the next call in its own thread.
            self._profiler.__init__(_switch_off)

    def spots(self) -> list[HotSpot]:
        """Return the functions, sorted by own time, the largest first."""
        entries = self._profiler.getstats()
        ours = [entry for entry in entries if _is_ours(entry)]
        # Exclude the recorder's own functions and the C functions that it called. Python functions
        # that it called are decorated functions of the program, so they stay.
        called_by_ours = Counter[Any]()
        seconds_by_ours = defaultdict[Any, float](float)
        for called in chain.from_iterable(entry.calls or () for entry in ours):
            if isinstance(called.code, str):
                called_by_ours[called.code] += called.callcount
                seconds_by_ours[called.code] += called.inlinetime
        seen = [
            _function(
                entry, entry.callcount - called_by_ours[entry.code], seconds_by_ours[entry.code]
            )
            for entry in entries
            if not _is_ours(entry) and entry.callcount > called_by_ours[entry.code]
        ]
        return sorted(seen, key=lambda spot: -spot.own_ns)


_replaced: Final[list[Any]] = []
"""Profilers that another profiler replaced. They are kept alive: when CPython frees a profiler that
was not switched off, it switches off the active one.
"""


def _switch_off() -> int:
    """Switch off the calling thread's profiler, which calls this function as its timer."""
    sys.setprofile(None)
    return 0


def _is_ours(entry: Any) -> bool:
    if isinstance(entry.code, str):
        return "_lsprof.Profiler" in entry.code
    code: CodeType = entry.code
    return code.co_filename.startswith(OURS) or code.co_name in _COMPILE_CHECKS


def _function(entry: Any, calls: int, excluded_s: float) -> HotSpot:
    from otel_mlperf.run_files.hot_file import HotSpot

    code: CodeType | str = entry.code
    about: dict[str, Any] = (
        {"name": code.strip("<>")}
        if isinstance(code, str)
        else {"name": code.co_qualname, "file": code.co_filename, "line": code.co_firstlineno}
    )
    own, total = (
        max(0, round((seconds - excluded_s) * 1e9))
        for seconds in (entry.inlinetime, entry.totaltime)
    )
    return HotSpot(**about, calls=calls, own_ns=own, total_ns=total)
