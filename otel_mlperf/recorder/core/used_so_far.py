"""Cumulative resource usage of the calling thread and memory of its process.

The values come from the kernel's counters: CPU time, context switches and I/O bytes of the thread,
and memory of the process. PyTorch's CUDA allocator reports the allocated device memory. A value
that cannot be read is None.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_mlperf.foreign_errors import raise_foreign
from otel_mlperf.own_descriptor import OwnDescriptor
from otel_mlperf.portability import CLOEXEC, IS_PORTABLE, IS_WINDOWS
from otel_mlperf.recorder.core.interrupts import raises_afterwards

with contextlib.suppress(ImportError):  # Windows, where nothing is recorded
    import resource
if TYPE_CHECKING:
    from collections.abc import Callable

PAGE_BYTES: Final = mmap.PAGESIZE
_PEAK_BYTES: Final = 1 if sys.platform == "darwin" else 1 << 10
"""Unit of ``ru_maxrss`` in bytes."""
PROC: Final = "/proc"
_MAX_BYTES: Final = 512
_MAX_OPEN_FILES: Final = 64
"""Maximum number of threads that keep a file open: a program may have thousands of threads, and the
kernel limits its number of open files.
"""


class OfDevice(NamedTuple):
    """Memory that PyTorch's allocator has allocated for the process on one CUDA device."""

    device: int
    allocated_bytes: int
    peak_bytes: int
    reserved_peak_bytes: int = 0
    """Peak of the memory that the allocator reserved, whether or not tensors used it."""


class OfProcess(NamedTuple):
    """Memory of the process."""

    resident_bytes: int | None
    peak_bytes: int
    """Peak of resident memory."""
    device: OfDevice | None
    """Memory on the current CUDA device; None if CUDA is not initialised."""


class UsedSoFar(NamedTuple):
    """Cumulative usage of the calling thread, and memory of its process."""

    cpu_ns: int
    voluntary: int | None
    """Context switches because the thread waited; None except on Linux."""
    involuntary: int | None
    """Context switches by which the kernel preempted the thread; None except on Linux."""
    read_bytes: int | None
    """Bytes read by the thread's calls, including cached files, pipes and terminals."""
    written_bytes: int | None
    process: OfProcess

    @property
    def of_thread(self) -> tuple[int | None, ...]:
        """All fields except ``process``, i.e. the values of the thread, in field order."""
        return self[:5]


def loaded_cuda() -> Any:
    """Return ``torch.cuda`` if the program has imported and initialised it, otherwise None."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    is_initialized = getattr(cuda, "is_initialized", None)
    return cuda if is_initialized is not None and is_initialized() else None


class PeakSinceStart:
    """Peak of a value since the start of a run, from a counter of the process's lifetime peak.

    If the lifetime peak has changed since the start, the new one is the run's peak. Otherwise the
    run stayed below the earlier peak, and its peak is the maximum of the values passed to
    ``update``.

    Args:
        highest: the lifetime peak when the run starts.
    """

    __slots__ = ("_before", "_read")

    def __init__(self, highest: int) -> None:
        self._before: int | None = highest
        self._read = 0

    def update(self, highest: int, current: int) -> int:
        """Return the run's peak, from the lifetime peak (``highest``) and the current value."""
        if highest != self._before:
            self._before = None
            return highest
        self._read = max(self._read, current)
        return self._read


def peak_bytes() -> int:
    """Return the peak of this process's resident memory; 0 if the platform is Windows."""
    if IS_WINDOWS:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _PEAK_BYTES


def _of_thread() -> tuple[int | None, int | None, int]:
    """Return the thread's voluntary and involuntary context switches and its process's peak memory.

    The switches are None except on Linux. The kernel reports the process's peak for each thread.
    """
    if IS_PORTABLE:
        return None, None, peak_bytes()
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return usage.ru_nvcsw, usage.ru_nivcsw, usage.ru_maxrss * _PEAK_BYTES


class Counters:
    """Reader of the resource counters of the calling thread and its process.

    Args:
        proc: where procfs is mounted.
        find_cuda: returns ``torch.cuda``; None if CUDA is not initialised.
    """

    def __init__(self, proc: str = PROC, find_cuda: Callable[[], Any] = loaded_cuda) -> None:
        self._find_cuda = find_cuda
        self._memory = KernelFile(f"{proc}/self/statm")
        self._threads = _ThreadFiles(f"{proc}/thread-self/io", [None] * _MAX_OPEN_FILES)

    def before(self) -> UsedSoFar:
        """Read the counters before a measurement; CPU time last, to exclude this call's cost."""
        resident, device, (read, written, own_bytes) = (
            self.resident_bytes(),
            self._device(None),
            self._io(),
        )
        voluntary, involuntary, peak = _of_thread()
        process = _of_process(resident, peak, device)
        # The kernel counts the bytes of this read only after it: add them, so that the measurement
        # does not include them.
        read = None if read is None else read + own_bytes
        cpu_ns = time.thread_time_ns()
        return UsedSoFar(cpu_ns, voluntary, involuntary, read, written, process)

    def after(self, device: int | None = None) -> UsedSoFar:
        """Read the counters after a measurement; CPU time first, to exclude the cost of this call.

        ``device`` is the CUDA device whose memory is read (default: the current device).
        """
        cpu_ns = time.thread_time_ns()
        voluntary, involuntary, peak = _of_thread()
        (read, written, _), resident = self._io(), self.resident_bytes()
        process = _of_process(resident, peak, self._device(device))
        return UsedSoFar(cpu_ns, voluntary, involuntary, read, written, process)

    def of_process(self) -> OfProcess:
        """Return the memory of the process, without counters of the thread."""
        return _of_process(self.resident_bytes(), peak_bytes(), self._device(None))

    def _io(self) -> tuple[int | None, int | None, int]:
        """Return the bytes read and written (None if unknown), and the bytes read by this call."""
        text = self._threads.file().read()
        # The file starts with the lines rchar and wchar; no other file in /proc starts like this.
        columns = text.split(None, 4) if text.startswith(b"rchar: ") else ()
        known = (int(columns[1]), int(columns[3])) if len(columns) > 3 else (None, None)
        return *known, len(text)

    def resident_bytes(self) -> int | None:
        """Return the resident memory of the process in bytes; None if it cannot be read."""
        columns = self._memory.read().split(None, 2)
        return int(columns[1]) * PAGE_BYTES if len(columns) > 1 and columns[1].isdigit() else None

    def _device(self, device: int | None) -> OfDevice | None:
        cuda = self._find_cuda()
        if cuda is None:
            return None
        if device is None:
            device = int(cuda.current_device())
        account = cuda.memory_stats_as_nested_dict(device)
        if not account:
            return OfDevice(device, 0, 0)
        size, reserved = account["allocated_bytes"]["all"], account["reserved_bytes"]["all"]
        return OfDevice(device, size["current"], size["peak"], reserved["peak"])


def _of_process(resident: int | None, peak: int, device: OfDevice | None) -> OfProcess:
    """Return the memory of the process.

    The peak is at least the resident memory, because the kernel updates its own peak with a delay.
    """
    return OfProcess(resident, max(peak, resident or 0), device)


class KernelFile:
    """Small procfs file that stays open, which makes a reading five times cheaper."""

    __slots__ = ("_file", "_path", "_pid")

    def __init__(self, path: str) -> None:
        self._path, self._pid = path, 0
        self._file: OwnDescriptor | None = None

    def read(self) -> bytes:
        """Return the current content, at most 512 bytes; empty if the file cannot be read."""
        try:
            # In a forked child, the open file still describes the parent process.
            file = self._file
            if file is None or self._pid != os.getpid():
                file = self._open()
            return os.pread(file.fd, _MAX_BYTES, 0)
        except OSError as error:
            raise_foreign(error)
            self._file = None  # not closed: the program has closed it
            return b""

    def _open(self) -> OwnDescriptor:
        self._file = None
        self._file = OwnDescriptor(os.open(self._path, os.O_RDONLY | CLOEXEC))
        self._pid = os.getpid()
        return self._file

    def close(self) -> None:
        """Close the descriptor, except in a forked child or if the program has reused it."""
        file, self._file = self._file, None
        try:
            if file is not None and self._pid == os.getpid():
                file.close()
        except OSError as error:
            raise_foreign(error)

    # A thread's file is closed with the thread.
    __del__ = raises_afterwards(close)


class _ThreadFile(KernelFile):
    __slots__ = ("_release",)

    def __init__(self, path: str, give_back: Callable[[], object]) -> None:
        super().__init__(path)
        self._release = give_back

    def close(self) -> None:
        """Close the file, so that another thread is allowed to keep one open."""
        super().close()
        self._release()

    __del__ = raises_afterwards(close)


class _ThreadFiles(threading.local):
    """The calling thread's own procfs file, kept open by at most ``_MAX_OPEN_FILES`` threads."""

    kept: KernelFile | None = None

    def __init__(self, path: str, room: list[None]) -> None:
        self._path = path
        # ``pop`` is atomic, so that concurrent threads cannot exceed the limit.
        with contextlib.suppress(IndexError):
            room.pop()
            self.kept = _ThreadFile(path, lambda: room.append(None))

    def file(self) -> KernelFile:
        return self.kept or KernelFile(self._path)
