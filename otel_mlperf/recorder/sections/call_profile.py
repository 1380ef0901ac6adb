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

    from otel_mlperf.hot_file import HotSpot, Kind

ANOTHER: Final = "another profiler was on"
CAME_BETWEEN: Final = "another profiler took its place"
OTHER_THREAD: Final = "it ended in another thread"
GAVE_WAY: Final = "it awaited, and others ran in its thread"
OURS: Final = __file__.rpartition("/recorder/")[0]
_ASKED_OF_TORCH: Final = ("is_dynamo_compiling", "is_compiling")
"""Functions that ``span`` calls to know whether it is being compiled."""
_PER_THREAD: Final = sys.version_info < (3, 12)
"""Later a profiler is the interpreter's, not a thread's, and any thread ends it."""


@functools.cache
def why_not_loaded(package: str) -> str:
    """Why a profiler's package cannot be loaded; empty: it can. Loads what it needs."""
    try:
        importlib.import_module(package)
    except Exception as error:  # noqa: BLE001 - whatever a package does while it is loaded
        raise_foreign(error)
        return f"{package} cannot be loaded ({error})"
    return ""


class CallProfile:
    """A profiler on one call, from ``begin`` to ``end``."""

    kind: ClassVar[Kind]
    another: ClassVar[str] = ANOTHER
    """What is said where it cannot be switched on."""

    def __init__(self) -> None:
        self.left_out = ""
        self.has_begun = False
        self.duration_ns = self.kept_bytes = self.peak_bytes = 0
        self._thread, self._turn = get_ident(), current_turn()
        self._t0 = 0

    def begin(self) -> None:
        """Switches it on, if no other is."""
        self._t0 = time.monotonic_ns()
        self.has_begun = self._on()
        if not self.has_begun:
            self.left_out = self.another

    def end(self) -> None:
        """Takes what there is to know and switches it off."""
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
        """Switches it off, if it is on."""
        raise NotImplementedError

    def in_place_of(self, function: Any) -> Any:
        """What is to be called instead of the function whose call is profiled."""
        return function

    def spots(self) -> list[HotSpot]:
        """All that was seen, the largest first."""
        raise NotImplementedError

    def _on(self) -> bool:
        raise NotImplementedError

    def _take(self) -> bool:
        raise NotImplementedError


class FunctionProfile(CallProfile):
    """Functions that were called, by cProfile."""

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
        """Before Python 3.12 in the thread in which it is on."""
        if not _PER_THREAD or sys.getprofile() is self._profiler:
            self._profiler.disable()
        elif self._thread != get_ident():
            # No thread can end another's; that one does it by itself, at its next call.
            self._profiler.__init__(_end_here)

    def spots(self) -> list[HotSpot]:
        """By the time in each function itself."""
        entries = self._profiler.getstats()
        ours = [entry for entry in entries if _is_ours(entry)]
        # What is written in C and was called by ours is no more the section's than they are. Their
        # calls of Python's functions are the program's: of those that are decorated.
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
"""Kept: where one goes that was not switched off, CPython takes off whatever is on."""


def _end_here() -> int:
    """Asked for the time by a profiler whose call is over: ends it in the thread that asks."""
    sys.setprofile(None)
    return 0


def _is_ours(entry: Any) -> bool:
    if isinstance(entry.code, str):
        return "_lsprof.Profiler" in entry.code
    code: CodeType = entry.code
    return code.co_filename.startswith(OURS) or code.co_name in _ASKED_OF_TORCH


def _function(entry: Any, calls: int, not_its_s: float) -> HotSpot:
    from otel_mlperf.hot_file import HotSpot

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
