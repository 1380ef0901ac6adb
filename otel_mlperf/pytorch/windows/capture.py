"""Recording of one profiler window, from the warm-up to the trace in its folder.

All functions are called between steps, by the training thread, because torch profiles the thread
that starts its profiler. Only exceptions that a signal handler of the program raised in the
meantime propagate; the caller then drops the window.

torch does not report the number of events before it has stopped the profiler. Events are allocated
on the heap, and between two steps nothing else grows there. The growth in malloc's statistics,
divided by the measured size of an event, therefore gives the number of events to within a factor of
two. An event has about 220 bytes; shapes double that, stacks and allocations add many small events.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal

from otel_mlperf import names
from otel_mlperf.foreign_errors import is_foreign
from otel_mlperf.pytorch.windows import profiler_lock
from otel_mlperf.pytorch.windows.trace_file import has_device_events, has_started, write_trace
from otel_mlperf.recorder.core.faults import internal_error, log, warn_once
from otel_mlperf.recorder.core.interrupts import at_once
from otel_mlperf.recorder.core.thread_ident import get_ident
from otel_mlperf.recorder.core.used_so_far import Counters
from otel_mlperf.recorder.lifecycle.clocks import read_clocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from otel_mlperf.recorder.lifecycle.recorder import Recorder
    from otel_mlperf.settings.profile_schedule import Schedule

_FIELDS: Final = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks",
                  "uordblks", "fordblks", "keepcost")  # fmt: skip
_PLAIN_BYTES: Final = 220
_SHAPES_BYTES: Final = 475
_SMALL_BYTES: Final = 150
_COUNTERS: Final = Counters()


class _Wide(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS]


class _Narrow(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint) for name in _FIELDS]


def resident_bytes() -> int:
    """Return the resident memory of the process in bytes; 0 if the kernel does not report it."""
    return _COUNTERS.resident_bytes() or 0


class WindowGrowth:
    """Growth of process memory over all windows after the first, whose memory they reuse."""

    bytes = 0
    windows = 0

    @classmethod
    def add(cls, grown: int) -> None:
        """Add the growth of the process, in bytes, over a window that has ended."""
        cls.windows += 1
        if cls.windows > 1:
            cls.bytes += grown


class Heap:
    """Growth of the heap since the construction of this object."""

    def __init__(self) -> None:
        self._read, self._bits = _detect_account()
        self._start = self._read()

    def growth_bytes(self) -> int:
        """Return the growth of bytes in use; 0 if malloc has no statistics, or the heap shrank."""
        # 32-bit statistics wrap to 0 after 4 GiB: growth of more than half of that is a decrease.
        grown = (self._read() - self._start) % (1 << self._bits)
        return 0 if grown >> (self._bits - 1) else grown

    def events(self, schedule: Schedule) -> int:
        """Estimate the number of events recorded since the construction of this object."""
        return self.growth_bytes() // event_bytes(schedule)


def event_bytes(schedule: Schedule) -> int:
    """Return the estimated size of one event on the heap, in bytes."""
    if schedule.with_stack or schedule.profile_memory:
        return _SMALL_BYTES
    return _SHAPES_BYTES if schedule.record_shapes else _PLAIN_BYTES


def _detect_account() -> tuple[Callable[[], int], int]:
    """Return a function that reads malloc's bytes in use, and the bits of malloc's counters."""
    library = ctypes.CDLL(None)
    for name, kind, bits in (("mallinfo2", _Wide, 64), ("mallinfo", _Narrow, 32)):
        function = getattr(library, name, None)
        if function is not None:
            function.restype = kind
            return functools.partial(_in_use, function), bits
    return lambda: 0, 64


def _in_use(read: Callable[[], Any]) -> int:
    account = read()
    # Bytes allocated from malloc's arenas, and mappings of large blocks.
    return int(account.uordblks + account.hblkhd)


_LOG_LEVEL: Final = "KINETO_LOG_LEVEL"
_SILENT: Final = "99"
_SAFE_CUDA: Final = (12, 6)
NO_EVENTS: Final = (
    "the trace has no GPU events: either nothing ran on the GPU, or CUPTI was not available "
    "(used by another profiler such as nsys, ncu or DCGM, or not permitted by the driver)"
)


def choose_activities(wanted: Sequence[str]) -> tuple[list[Any], list[str], str]:
    """Return torch's activities, their names, and a message on missing activities, or "".

    Args:
        wanted: names of activities; empty for all available ones.
    """
    profiler = sys.modules["torch.profiler"]
    supported = {kind.name.lower(): kind for kind in profiler.supported_activities()}
    names = sorted(name for name in supported if not wanted or name in wanted) or ["cpu"]
    missing = [name for name in wanted if name not in supported]
    problem = f"torch cannot record {', '.join(missing)} here" if missing else ""
    if not wanted and len(supported) == 1:
        problem = "torch finds no GPU here"
    kinds = [supported.get(name, profiler.ProfilerActivity.CPU) for name in names]
    return kinds, names, problem


def has_crashing_graphs(cuda: str | None, *, are_graphs_used: bool) -> bool:
    """Return whether restarting a profiler would crash the CUDA graphs of CUDA version ``cuda``.

    ``cuda`` is None if torch is built without CUDA. The result is False if no graphs are used. See
    https://github.com/pytorch/pytorch/issues/75504.
    """
    if cuda is None or not are_graphs_used:
        return False
    numbers = [int(part) if part.isdigit() else 0 for part in cuda.split(".")[:2]]
    return tuple(numbers) < _SAFE_CUDA


def detect_crashing_graphs() -> bool:
    """Return whether restarting a profiler would crash CUDA graphs that this process uses."""
    torch = sys.modules["torch"]
    compiler = sys.modules.get("torch._inductor.config")
    is_compiled = compiler is not None and bool(compiler.triton.cudagraphs)
    # Detects only graphs of torch.compile, by its modules: manually captured graphs leave no trace
    # there.
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    return has_crashing_graphs(torch.version.cuda, are_graphs_used=is_compiled or trees is not None)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Kineto inside the context. Kineto reads its log level for stderr at its first use."""
    if _LOG_LEVEL in os.environ:
        yield
        return
    os.environ[_LOG_LEVEL] = _SILENT
    try:
        yield
    finally:
        os.environ.pop(_LOG_LEVEL, None)


_GROWTH_BYTES: Final = 256 << 20
_GAVE_WAY: Final = "the program has started a profiler of its own: the window ends at that time"
_PATIENCE_S: Final = 5.0
"""Maximum wait of another thread's profiler until our step has ended, in seconds."""
Skipped = Literal["busy", "no_torch", "memory", "cuda_graphs", "failed", "not_reached"]


class Capture:
    """Recording of one profiler window: ``prepare``, then ``start``, then ``finish``.

    Args:
        schedule: what is recorded.
        recorder: recorder of the run to which the window belongs; None: no run.
        end_now: called if the window has to end immediately; must call ``finish``.
    """

    def __init__(
        self, schedule: Schedule, recorder: Recorder | None, end_now: Callable[[], object]
    ) -> None:
        self._schedule = schedule
        self._recorder = recorder
        self._end_now = end_now
        self._profiler: Any = None
        self._thread = 0
        self._heap: Heap | None = None
        self._resident = 0
        self._is_awaited = False
        self.is_lost = False
        """Whether another profiler started: torch has dropped our events, an export would crash."""
        self.gave_way = False
        """Whether the window ended because the program started a profiler."""
        self._is_over = threading.Event()
        self.is_recording = False
        self.start_at = self.end_at = (0, 0)
        """Unix and monotonic time, read together, at the start and at the end of the recording."""
        self.activities: list[str] = []
        self.problem = ""
        """Why events are missing; empty if none are known to be."""
        self.export_span = 0
        """Span id of the section in which the trace was written."""

    # -- start ----------------------------------------------------------------------------------

    def prepare(self) -> Skipped | None:
        """Start the profiler's warm-up; return the reason if that fails, else None."""
        self._thread, self._resident = get_ident(), resident_bytes()
        if WindowGrowth.bytes > _GROWTH_BYTES:
            warn_once("profiler windows have increased the memory of the process by %d MiB: "
                      "further windows are skipped", WindowGrowth.bytes >> 20)  # fmt: skip
            return "memory"
        with self._section(names.SPAN_PROFILER_START):
            try:
                return self._prepare()
            except Exception as error:  # noqa: BLE001 - whatever torch raises, training goes on
                self._give_up(error)
                return "failed"

    def _prepare(self) -> Skipped | None:
        try:
            profiler = importlib.import_module("torch.profiler")
        except ImportError as error:
            warn_once("torch cannot be imported (%s): nothing is profiled", error)
            return "no_torch"
        profiler_lock.install()
        if detect_crashing_graphs():
            warn_once("CUDA graphs crash under a profiler with CUDA before 12.6: nothing is "
                      "profiled")  # fmt: skip
            return "cuda_graphs"
        if not profiler_lock.claim(self):
            warn_once("another profiler is running in this process: a profiler window is skipped")
            return "busy"
        kinds, self.activities, self.problem = choose_activities(self._schedule.activities)
        if self.problem:
            log.info("%s: the profiler records %s", self.problem, ", ".join(self.activities))
        of = self._schedule
        # Not torch.profiler.profile: that object is in a reference cycle and stays until a garbage
        # collection.
        self._profiler = profiler._KinetoProfile(
            activities=kinds,
            record_shapes=of.record_shapes,
            profile_memory=of.profile_memory,
            with_stack=of.with_stack,
        )
        # A window has only one cycle: this setting prevents torch 2.11's warning that events of
        # earlier cycles are lost.
        self._profiler.acc_events = True
        with quiet(), profiler_lock.calling():
            self._profiler.prepare_trace()
        # Reset: otherwise torch would create an object for each event at the stop, in reference
        # cycles.
        self._profiler.profiler.acc_events = False
        return None

    def start(self) -> Skipped | None:
        """Start recording; return the reason if that fails, else None."""
        if self._profiler is None:
            return "failed"
        try:
            # Measured from here, not from the preparation: in the warm-up, loaded libraries make
            # the heap grow too.
            self._resident, self._heap = resident_bytes(), Heap()
            with profiler_lock.calling():
                self._profiler.start_trace()
            self.start_at, self.is_recording = read_clocks(), True
        except Exception as error:  # noqa: BLE001 - whatever torch raises, training goes on
            self._give_up(error)
            return "failed"
        return None

    @property
    def must_end(self) -> bool:
        """Return whether too many events or another profiler require the window to end early."""
        if self._is_awaited or self._heap is None or not self.is_recording:
            return self._is_awaited
        return self._heap.events(self._schedule) >= self._schedule.events

    def give_way(self) -> None:
        """End the window, because the program starts its own profiler.

        If another thread than the window's calls this, it waits until the window has ended, at most
        5 s.
        """
        self.gave_way = True
        self._note(_GAVE_WAY)
        if get_ident() == self._thread:
            self._end_now()
        else:
            # Only the thread that started torch's profiler may stop it: the training thread does so
            # after its step. This thread waits without a lock that the training thread needs.
            self._is_awaited = True
            self.is_lost = not self._is_over.wait(_PATIENCE_S)

    # -- end ------------------------------------------------------------------------------------

    def finish(self, folder: Path, name: str) -> Path | None:
        """Stop the profiler and write the trace; return the path, None if no trace was written."""
        if self._profiler is None or get_ident() != self._thread:
            profiler_lock.release(self)
            return None
        with self._section(names.SPAN_PROFILER_EXPORT) as section:
            self.export_span = section.sid if section is not None else 0
            try:
                return self._finish(folder, name)
            except Exception as error:  # noqa: BLE001 - a full disk, whatever torch raises
                self._give_up(error)
                return None
            finally:
                self._release()

    def _finish(self, folder: Path, name: str) -> Path | None:
        profiler, was_recording = self._profiler, self.is_recording
        self._stop()
        if not was_recording:
            return None
        if self.is_lost or not has_started(profiler.profiler.kineto_results):
            warn_once("another profiler has replaced the running one: a profiler window is lost")
            return None
        path = write_trace(profiler.export_chrome_trace, folder, name)
        if len(self.activities) > 1 and not has_device_events(path):
            self._note(NO_EVENTS)
        return path

    def _note(self, problem: str) -> None:
        self.problem = "; ".join(filter(None, (self.problem, problem)))
        warn_once(problem)

    def _stop(self) -> None:
        profiler = self._profiler
        with profiler_lock.calling():
            if not self.is_recording:
                profiler.start_trace()  # as in torch, if a schedule ends in its warm-up
            # Read before torch stops: stopping a large window lasts seconds.
            self.end_at, self.is_recording = read_clocks(), False
            profiler.stop_trace()

    def _give_up(self, error: Exception) -> None:
        if is_foreign(error):
            self._release()
            raise error
        warn_once("a profiler window is lost: %s: %s", type(error).__name__, error)
        self._release()

    @at_once
    def drop(self) -> None:
        """End the window without a trace; a second call does nothing."""
        try:
            self._release()
        except BaseException:
            self._release()
            raise

    def _release(self) -> None:
        if self._profiler is None:
            profiler_lock.release(self)
            self._is_over.set()
            return
        if self.is_recording or self._started_unnoticed():
            with profiler_lock.calling():
                try:
                    self._profiler.stop_trace()
                except Exception as error:  # noqa: BLE001 - it may never have started
                    internal_error(error)
            self.is_recording = False
        # torch frees its data together with the profiler object: other profilers may start only
        # afterwards.
        self._profiler = self._heap = None
        profiler_lock.release(self)
        self._is_over.set()
        WindowGrowth.add(resident_bytes() - self._resident)

    def _started_unnoticed(self) -> bool:
        """Return whether torch records, but an interrupt came before ``is_recording`` was set."""
        is_enabled = sys.modules["torch.autograd.profiler"]._is_profiler_enabled
        return is_enabled and profiler_lock.is_alone()

    @contextmanager
    def _section(self, name: str) -> Iterator[Any]:
        """Open a section of the run's trace, outside steps; yield None if there is no run."""
        recorder = self._recorder
        if recorder is None or recorder.is_retired:
            yield None
            return
        section = recorder.sections.enter(name, names.PROFILER)
        try:
            yield section
        finally:
            section.__exit__(None, None, None)
