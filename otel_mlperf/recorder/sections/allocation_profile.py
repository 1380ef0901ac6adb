"""Allocation profile of one call of a section: lines whose allocations survived the call.

If the optional package ``memray`` is installed, it records each allocation of the process,
including tensors on the CPU. Otherwise ``tracemalloc`` of the standard library records allocations
of Python and NumPy only.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf.foreign_errors import is_foreign
from otel_mlperf.recorder.sections.call_profile import OURS, CallProfile, why_not_loaded

if TYPE_CHECKING:
    from otel_mlperf.run_files.hot_file import HotSpot

_PACKAGE: Final = "memray"
_REFUSED: Final = (RuntimeError, AssertionError)
"""Exceptions that memray raises if it is already on, or was on when the process was forked."""


def has_memray() -> bool:
    """Return whether ``memray`` can be imported; if so, import it."""
    return not why_not_loaded(_PACKAGE)


def new_allocation_profile() -> CallProfile:
    """Return a profile by ``memray`` if it is installed, otherwise by ``tracemalloc``."""
    return ProcessAllocationProfile() if has_memray() else PythonAllocationProfile()


class PythonAllocationProfile(CallProfile):
    """Lines whose Python allocations survived the call; recorded by ``tracemalloc``."""

    kind = "memory"

    def __init__(self) -> None:
        super().__init__()
        import tracemalloc

        self._tracer = tracemalloc
        self._snapshot: Any = None
        self._is_ours = False

    def _on(self) -> bool:
        if self._tracer.is_tracing():
            return False
        self._is_ours = True  # first: an interrupt after ``start`` must lead to ``stop``
        self._tracer.start()
        return True

    def _take(self) -> bool:
        if not self._tracer.is_tracing():
            return False
        self.kept_bytes, self.peak_bytes = self._tracer.get_traced_memory()
        self._snapshot = self._tracer.take_snapshot()
        return True

    def off(self) -> None:
        """Switch ``tracemalloc`` off, unless the program had switched it on."""
        if self._is_ours and self._tracer.is_tracing():
            self._tracer.stop()
        self._is_ours = False

    def spots(self) -> list[HotSpot]:
        """Return the lines with surviving allocations, sorted by the bytes that were not freed."""
        if self._snapshot is None:
            return []
        return _largest(
            {
                (frame.filename, frame.lineno): (one.size, one.count)
                for one in self._snapshot.statistics("lineno")
                if (frame := one.traceback[0]).filename != self._tracer.__file__
            }
        )


class ProcessAllocationProfile(CallProfile):
    """Lines whose allocations, in any thread, survived the call; recorded by ``memray``.

    ``memray`` aggregates allocations by line and writes them to a temporary file.
    """

    kind = "memory"

    def __init__(self) -> None:
        super().__init__()
        self._memray: Any = importlib.import_module(_PACKAGE)
        self._tracker: Any = None
        self._file, self._pid = "", os.getpid()
        self._lines: dict[tuple[str, int], tuple[int, int]] = {}

    def _on(self) -> bool:
        if sys.getprofile() is not None:
            return False  # memray would replace the profiler
        # Imported on demand: only programs that request the profile load these modules.
        import secrets
        import tempfile

        # Stored before the file is created, so that it is removed after an interrupt, too.
        self._file = os.path.join(tempfile.gettempdir(), f"otel_mlperf-{secrets.token_hex(8)}")
        self._tracker = self._memray.Tracker(
            destination=self._memray.FileDestination(self._file, overwrite=False),
            file_format=self._memray.FileFormat.AGGREGATED_ALLOCATIONS,
            trace_python_allocators=True,
        )
        try:
            self._tracker.__enter__()
        except _REFUSED as error:
            if is_foreign(error):
                raise
            self._tracker = None  # its exit would end the tracker that is already on
            self.off()
            return False
        return True

    def _take(self) -> bool:
        if sys.getprofile() is not None:
            return False  # the new profiler replaced memray's, which reports the lines
        self._end()
        with self._memray.FileReader(self._file) as read:
            self.peak_bytes = read.metadata.peak_memory
            sums: dict[tuple[str, int], tuple[int, int]] = {}
            for one in read.get_leaked_allocation_records(merge_threads=True):
                frames = one.stack_trace(max_stacks=1)
                place = frames[0][1:] if frames else ("", 0)
                size, blocks = sums.get(place, (0, 0))
                sums[place] = (size + one.size, blocks + one.n_allocations)
        self._lines = sums
        self.kept_bytes = sum(size for size, _ in sums.values())
        return True

    def off(self) -> None:
        """End the profile and remove its file."""
        if self._pid != os.getpid():
            return  # forked child: memray is off here, and the file belongs to the parent process
        self._end()
        if self._file:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._file)

    def spots(self) -> list[HotSpot]:
        """Return the lines with surviving allocations, sorted by the bytes that were not freed."""
        return _largest(self._lines)

    def _end(self) -> None:
        if self._tracker is not None:
            self._tracker.__exit__(None, None, None)  # idempotent
            self._tracker = None


def _largest(lines: dict[tuple[str, int], tuple[int, int]]) -> list[HotSpot]:
    from otel_mlperf.run_files.hot_file import HotSpot

    seen = [
        HotSpot(file=file, line=line, kept_bytes=size, blocks=blocks)
        for (file, line), (size, blocks) in lines.items()
        if file and not file.startswith(OURS)
    ]
    return sorted(seen, key=lambda spot: -spot.kept_bytes)
