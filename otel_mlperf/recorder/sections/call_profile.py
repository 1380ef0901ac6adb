"""Profile of one call of a section: the functions that it called.

It uses cProfile of the standard library. Lines are profiled in ``line_profile``, allocations in
``allocation_profile``. A profiler that is on already is never replaced. In any case ``off`` leaves
no profiler on; it may be called again. The writer of profiles is loaded with the first profile:
importing the package does not load msgspec.
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
CAME_BETWEEN: Final = "another profiler replaced it during the call"
OTHER_THREAD: Final = "the call ended in another thread"
GAVE_WAY: Final = "the call awaited, and other tasks ran in its thread"
OURS: Final = __file__.rpartition("/recorder/")[0]
_ASKED_OF_TORCH: Final = ("is_dynamo_compiling", "is_compiling")
"""Functions that ``span`` calls to check whether it is being compiled."""
_PER_THREAD: Final = sys.version_info < (3, 12)
"""Since 3.12 a profiler belongs to the interpreter, not to a thread, and any thread can end it."""


@functools.cache
def why_not_loaded(package: str) -> str:
    """Return why a profiler's package cannot be loaded; empty: it can. Loads what it needs."""
    try:
        importlib.import_module(package)
    except Exception as error:  # noqa: BLE001 - a package may raise anything on import
        raise_foreign(error)
        return f"{package} cannot be loaded ({error})"
    return ""


class CallProfile:
    """A profiler of one call, from ``begin`` to ``end``."""

    kind: ClassVar[Kind]
    another: ClassVar[str] = ANOTHER
    """The message if it cannot be switched on."""

    def __init__(self) -> None:
        self.left_out = ""
        self.has_begun = False
        self.duration_ns = self.kept_bytes = self.peak_bytes = 0
        self._thread, self._turn = get_ident(), current_turn()
        self._t0 = 0

    def begin(self) -> None:
        """Switch the profiler on, if no other profiler is on."""
        self._t0 = time.monotonic_ns()
        self.has_begun = self._on()
        if not self.has_begun:
            self.left_out = self.another

    def end(self) -> None:
        """Read the results and switch the profiler off."""
        if not self.has_begun or self.duration_ns:
            return
        self.duration_ns = time.monotonic_ns() - self._t0
        try:
            if not self._take():
                self.left_out = CAME_BETWEEN
        finally:
            self.off()
        if self._thread != get_ident():
            self.left_out = OTHER_THREAD
        elif not is_same_turn(self._turn, current_turn()):
            self.left_out = GAVE_WAY

    def off(self) -> None:
        """Switch the profiler off, if it is on."""
        raise NotImplementedError

    def in_place_of(self, function: Any) -> Any:
        """Return the function to be called instead of the profiled one."""
        return function

    def spots(self) -> list[HotSpot]:
        """Return all results, the largest first."""
        raise NotImplementedError

    def _on(self) -> bool:
        raise NotImplementedError

    def _take(self) -> bool:
        raise NotImplementedError


class FunctionProfile(CallProfile):
    """Called functions, by cProfile."""

    kind = "calls"

    def __init__(self) -> None:
        super().__init__()
        import cProfile

        self._profiler: Any = cProfile.Profile()

    def _on(self) -> bool:
        if sys.getprofile() is not None:
            return False  # before 3.12 it would be replaced
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
        """Switch the profiler off; before Python 3.12 in the thread in which it is on."""
        if not _PER_THREAD or sys.getprofile() is self._profiler:
            self._profiler.disable()
        elif self._thread != get_ident():
            # No thread can end another thread's profiler; that thread ends it at its next call.
            self._profiler.__init__(_end_here)

    def spots(self) -> list[HotSpot]:
        """Return the functions, sorted by their own time."""
        entries = self._profiler.getstats()
        ours = [entry for entry in entries if _is_ours(entry)]
        # C functions that the recorder called belong to the section as little as the recorder's own
        # functions. Its calls of Python functions are the program's: those of decorated functions.
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
"""Kept alive: if a profiler is freed that was not switched off, CPython removes whatever is on."""


def _end_here() -> int:
    """End the profiler, whose call is over, in the thread in which it reads the time."""
    sys.setprofile(None)
    return 0


def _is_ours(entry: Any) -> bool:
    if isinstance(entry.code, str):
        return "_lsprof.Profiler" in entry.code
    code: CodeType = entry.code
    return code.co_filename.startswith(OURS) or code.co_name in _ASKED_OF_TORCH


def _function(entry: Any, calls: int, not_its_s: float) -> HotSpot:
    from otel_mlperf.run_files.hot_file import HotSpot

    code: CodeType | str = entry.code
    about: dict[str, Any] = (
        {"name": code.strip("<>")}
        if isinstance(code, str)
        else {"name": code.co_qualname, "file": code.co_filename, "line": code.co_firstlineno}
    )
    own, total = (
        max(0, round((seconds - not_its_s) * 1e9))
        for seconds in (entry.inlinetime, entry.totaltime)
    )
    return HotSpot(**about, calls=calls, own_ns=own, total_ns=total)
