"""Resource usage of the calling thread and its process so far.

The values are the kernel's counters: CPU time, context switches and bytes of the thread, and memory
of the process, which its threads share. The memory that PyTorch's CUDA allocator has allocated is
added. A value that cannot be read is None.
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
"""Unit of ``ru_maxrss``."""
PROC: Final = "/proc"
_MOST_BYTES: Final = 512
_MOST_KEPT: Final = 64
"""Number of threads that keep a file open: a program may have thousands of threads, and the number
of files that it may open is limited.
"""


class OfDevice(NamedTuple):
    """Memory that PyTorch's allocator has allocated on one CUDA device, for the whole process."""

    device: int
    allocated_bytes: int
    peak_bytes: int
    reserved_peak_bytes: int = 0
    """The peak of memory reserved from the device, in use or not."""


class OfProcess(NamedTuple):
    """Memory of the process."""

    resident_bytes: int | None
    peak_bytes: int
    """The peak of resident memory."""
    device: OfDevice | None
    """Memory on the current CUDA device; None: no CUDA."""


class UsedSoFar(NamedTuple):
    """Usage of the calling thread, and memory of its process."""

    cpu_ns: int
    voluntary: int | None
    """Context switches because the thread waited; None: only Linux counts them per thread."""
    involuntary: int | None
    """Context switches although the thread had more to do."""
    read_bytes: int | None
    """Bytes read by the thread's calls, including cached files, pipes and terminals."""
    written_bytes: int | None
    process: OfProcess

    @property
    def of_thread(self) -> tuple[int | None, ...]:
        """The values of the thread."""
        return self[:5]


def loaded_cuda() -> Any:
    """Return ``torch.cuda``, if the program has imported and initialised it; else None."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    is_initialized = getattr(cuda, "is_initialized", None)
    return cuda if is_initialized is not None and is_initialized() else None


class PeakSinceStart:
    """The highest value since a run started, from a counter that keeps the process's highest value.

    It is the counter's value where the counter has changed since the start. Where it has not, the
    run stayed below the earlier peak: then it is the highest value that was read.
    """

    __slots__ = ("_before", "_read")

    def __init__(self, highest: int) -> None:
        self._before: int | None = highest
        self._read = 0

    def update(self, highest: int, current: int) -> int:
        """Return the highest value so far, from the process's highest and the ``current`` value."""
        if highest != self._before:
            self._before = None
            return highest
        self._read = max(self._read, current)
        return self._read


def peak_bytes() -> int:
    """Return the peak of this process's resident memory; 0 on Windows."""
    if IS_WINDOWS:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _PEAK_BYTES


def _of_thread() -> tuple[int | None, int | None, int]:
    """Return the context switches of the calling thread, and the peak of its process.

    For a thread the kernel reports the peak of the process, which is shared by all threads.
    """
    if IS_PORTABLE:
        return None, None, peak_bytes()
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return usage.ru_nvcsw, usage.ru_nivcsw, usage.ru_maxrss * _PEAK_BYTES


class Counters:
    """Counters of the calling thread and its process.

    Args:
        proc: path of the kernel's files.
        find_cuda: returns ``torch.cuda`` once it is initialised.
    """

    def __init__(self, proc: str = PROC, find_cuda: Callable[[], Any] = loaded_cuda) -> None:
        self._find_cuda = find_cuda
        self._memory = KernelFile(f"{proc}/self/statm")
        self._threads = _ThreadFiles(f"{proc}/thread-self/io", [None] * _MOST_KEPT)

    def before(self) -> UsedSoFar:
        """Read the counters before a measurement: the cost of reading is not included."""
        resident, device, (read, written, took) = (
            self.resident_bytes(),
            self._device(None),
            self._io(),
        )
        voluntary, involuntary, peak = _of_thread()
        process = _of_process(resident, peak, device)
        # The kernel counts the bytes of this read itself only now.
        read = None if read is None else read + took
        cpu_ns = time.thread_time_ns()
        return UsedSoFar(cpu_ns, voluntary, involuntary, read, written, process)

    def after(self, device: int | None = None) -> UsedSoFar:
        """Read the counters after a measurement; ``device``: a CUDA device (default: current)."""
        cpu_ns = time.thread_time_ns()
        voluntary, involuntary, peak = _of_thread()
        (read, written, _), resident = self._io(), self.resident_bytes()
        process = _of_process(resident, peak, self._device(device))
        return UsedSoFar(cpu_ns, voluntary, involuntary, read, written, process)

    def of_process(self) -> OfProcess:
        """Return the memory of the process alone."""
        return _of_process(self.resident_bytes(), peak_bytes(), self._device(None))

    def _io(self) -> tuple[int | None, int | None, int]:
        """Return the bytes read and written so far, and the bytes that this call reads."""
        text = self._threads.file().read()
        # rchar and wchar come first, and nothing else in /proc starts like this.
        words = text.split(None, 4) if text.startswith(b"rchar: ") else ()
        known = (int(words[1]), int(words[3])) if len(words) > 3 else (None, None)
        return *known, len(text)

    def resident_bytes(self) -> int | None:
        """Return the resident memory of the process; None where it cannot be read."""
        words = self._memory.read().split(None, 2)
        return int(words[1]) * PAGE_BYTES if len(words) > 1 and words[1].isdigit() else None

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
    """Return the memory of the process; its peak is at least its resident memory.

    The kernel updates its own peak only now and then.
    """
    return OfProcess(resident, max(peak, resident or 0), device)


class KernelFile:
    """A small file of the kernel that stays open, which makes reading it five times cheaper.

    It is empty where it cannot be read.
    """

    __slots__ = ("_file", "_path", "_pid")

    def __init__(self, path: str) -> None:
        self._path, self._pid = path, 0
        self._file: OwnDescriptor | None = None

    def read(self) -> bytes:
        """Return the current content."""
        try:
            # In a forked child it would be the parent's file.
            file = self._file
            if file is None or self._pid != os.getpid():
                file = self._open()
            return os.pread(file.fd, _MOST_BYTES, 0)
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
        """Close the descriptor, if it is still this file's and not one of the program."""
        file, self._file = self._file, None
        try:
            if file is not None and self._pid == os.getpid():
                file.close()
        except OSError as error:
            raise_foreign(error)

    # A thread's file is closed with the thread.
    __del__ = raises_afterwards(close)


class _ThreadFile(KernelFile):
    """A kernel file that a thread keeps open until it ends."""

    __slots__ = ("_give_back",)

    def __init__(self, path: str, give_back: Callable[[], object]) -> None:
        super().__init__(path)
        self._give_back = give_back

    def close(self) -> None:
        """Close the file and let another thread keep one."""
        super().close()
        self._give_back()

    __del__ = raises_afterwards(close)


class _ThreadFiles(threading.local):
    """The calling thread's own kernel file, kept open as long as few threads do so."""

    kept: KernelFile | None = None

    def __init__(self, path: str, room: list[None]) -> None:
        self._path = path
        # One call, which no other thread can interrupt.
        with contextlib.suppress(IndexError):
            room.pop()
            self.kept = _ThreadFile(path, lambda: room.append(None))

    def file(self) -> KernelFile:
        return self.kept or KernelFile(self._path)
