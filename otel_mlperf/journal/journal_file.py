"""Creation of a journal file, and its re-creation after the file was removed.

Logging out (``RemoveIPC`` of systemd) or a clean-up job can remove files in shared memory. Mapped
memory stays intact, but an agent that starts later cannot find the file. The content is therefore
copied to a new file with the same name, which is mapped at the same addresses. Pointers of the
recorder into the mapping stay valid, and a reader of the old file continues in the new file at the
same slot.

A truncated file raises SIGBUS at the next store, which no check can prevent. The agent restores the
length as soon as it detects the truncation (``ring_scan``). Only the owner of the file can truncate
it. The kernel cannot seal the size of a named file. A file without a name (``memfd_create``) would
be lost when the process and its agent end, so that ``doctor --recover`` could not read its rows.
"""

from __future__ import annotations

import gc
import mmap
import os
from contextlib import suppress
from functools import partial
from operator import call
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf.errors import JournalError
from otel_mlperf.own_descriptor import OwnDescriptor, own_descriptors
from otel_mlperf.portability import CLOEXEC, allocate

with suppress(ImportError):  # Windows, where nothing is recorded
    import fcntl
if TYPE_CHECKING:
    from collections.abc import Callable

_SHARED: Final[int] = getattr(mmap, "MAP_SHARED", 0) | getattr(mmap, "MAP_POPULATE", 0)
_MAP_FIXED: Final = 0x10
"""MAP_FIXED of Linux and macOS, which replaces the existing mapping at the address."""
_FAILED: Final = (1 << 64) - 1


def create_mapped(path: str, size: int) -> tuple[mmap.mmap, OwnDescriptor, list[OwnDescriptor]]:
    """Create, allocate, lock and map a file of ``size`` bytes.

    Returns:
        The mapping; the descriptor with the lock (closing any descriptor of the file releases the
        lock); and the mapping's own descriptors, which are closed together with the mapping.

    Raises:
        JournalError: the file exists, or there is no room for it.
    """
    fd = _create(path, size)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Map all pages now: the first store to an unmapped page costs ten times as much.
        return mmap.mmap(fd, size, _SHARED), OwnDescriptor(fd), own_descriptors(fd)
    except OSError as error:
        _discard(fd, path)
        raise _no_room(path, size, error) from error


def map_scratch(path: str, size: int) -> mmap.mmap:
    """Return memory of ``size`` bytes that is never read, for stores after recording has ended.

    The memory is allocated together with the journal ``path``, because there might be no memory
    left later (at the end of a run, or in a forked child). The memory occupies only address space
    until it is written.

    Raises:
        JournalError: there is no memory.
    """
    try:
        return mmap.mmap(-1, size)
    except OSError as error:
        raise _no_room(path, size, error) from error


def move_to_new(path: str, mapped: mmap.mmap) -> OwnDescriptor:
    """Replace the file behind a mapping with a new file ``path`` that has the same content.

    Blocks all other Python threads for some milliseconds.

    Returns:
        The descriptor of the new file, with this process's lock. The old descriptor must stay open
        as long as a reader might use the old file.

    Raises:
        JournalError: there is no room, or a system call failed. The mapping is unchanged.
    """
    size, temporary = len(mapped), f"{path}.new"
    fd = _create(temporary, size)
    try:
        _copy_and_map(mapped, fd, size)
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.replace(temporary, path)  # last, so that readers find the file complete and locked
    except OSError as error:
        _discard(fd, temporary)
        raise JournalError(f"replacing the removed journal {path}: {error.strerror}") from error
    return OwnDescriptor(fd)


def _copy_and_map(mapped: mmap.mmap, fd: int, size: int) -> None:
    import ctypes  # costs 5 ms, and is needed only here

    libc, access = _libc(), mmap.PROT_READ | mmap.PROT_WRITE
    old = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    # Closing this mapping closes a descriptor of the file, so that it must be closed before
    # locking.
    with mmap.mmap(fd, size, _SHARED) as new:
        copy = partial(libc.memmove, ctypes.addressof(ctypes.c_char.from_buffer(new)), old, size)
        map_onto = partial(libc.mmap, old, size, access, _SHARED | _MAP_FIXED, fd, 0)
        moved = _without_pause(copy, map_onto)
        del copy
    if moved == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _libc() -> Any:
    """Return the C library; calls of its functions do not release the GIL."""
    import ctypes

    libc, number, place, size = (
        ctypes.PyDLL(None, use_errno=True), ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t
    )  # fmt: skip
    for name, arguments in {
        "mmap": [place, size, number, number, number, ctypes.c_long],
        "memmove": [place, place, size],
    }.items():
        function = getattr(libc, name)
        function.argtypes, function.restype = arguments, place
    return libc


def _without_pause(*calls: Callable[[], Any]) -> Any:
    """Run ``calls`` without interruption by threads or signal handlers; return the last result.

    Threads and handlers only run between bytecodes, and ``map`` executes none. With interruptions,
    a row that is stored after the copy, but before the new mapping, would be lost.
    """
    collects = gc.isenabled()
    gc.disable()  # garbage collection may run Python code
    try:
        return [*map(call, calls)][-1]
    finally:
        if collects:
            gc.enable()


def close_mapped(buffer: mmap.mmap, of_buffer: list[OwnDescriptor]) -> None:
    """Close a mapping from ``create_mapped``; ``of_buffer`` are the mapping's own descriptors.

    If one of them now refers to a file of the user's program, the mapping stays open.

    Raises:
        BufferError: the mapping is still referenced.
    """
    if all(descriptor.is_ours() for descriptor in of_buffer):
        buffer.close()
        return
    import ctypes  # costs 5 ms

    # Keep the mapping until the process ends: its descriptor number now belongs to another file.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(buffer))


def _create(path: str, size: int) -> int:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | CLOEXEC, 0o600)
    except OSError as error:
        raise JournalError(f"creating the journal {path}: {error.strerror}") from error
    try:
        allocate(fd, size)  # allocate the memory now: otherwise a later store may raise SIGBUS
    except OSError as error:
        _discard(fd, path)
        raise _no_room(path, size, error) from error
    return fd


def _discard(fd: int, path: str) -> None:
    os.close(fd)
    os.unlink(path)


def _no_room(path: str, size: int, error: OSError) -> JournalError:
    return JournalError(
        f"allocating {size:,} bytes for the journal {path}: {error.strerror}; free space, or "
        "set OTEL_MLPERF_JOURNAL_ROWS lower"
    )
