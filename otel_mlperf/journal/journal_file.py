"""Creation of a journal file, and its re-creation after somebody has removed it.

Logging out may empty shared memory (``RemoveIPC`` of systemd), and so may a clean-up job. Mapped
memory stays intact, but an agent that starts later does not find the file. So the content is copied
into a new file of the same name and mapped at the same addresses. Pointers of the recorder into the
mapping stay valid, and a reader of the old file continues in the new file at the same slot.

No earlier check can keep a truncated file from raising SIGBUS at the next store. The agent restores
its length as soon as it sees it (``ring_scan``). Only the owner of the file can truncate it. The
kernel cannot seal the size of a file that has a name. A file without a name (``memfd_create``)
would be gone with the process and its agent, and ``doctor --recover`` could not read its rows.
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
_ONTO: Final = 0x10
"""MAP_FIXED of Linux and macOS: replaces what is mapped there."""
_FAILED: Final = (1 << 64) - 1


def create_mapped(path: str, size: int) -> tuple[mmap.mmap, OwnDescriptor, list[OwnDescriptor]]:
    """Create a file of ``size`` bytes, all of them allocated and mapped, with this process's lock.

    Returns:
        The memory; the descriptor with the lock, which closing any descriptor of the file would
        drop; and the descriptors that the memory closes with itself.
    """
    fd = _create(path, size)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Every page is mapped now: a store into a new page would cost ten times as much later.
        return mmap.mmap(fd, size, _SHARED), OwnDescriptor(fd), own_descriptors(fd)
    except OSError as error:
        _discard(fd, path)
        raise _no_room(path, size, error) from error


def map_scratch(path: str, size: int) -> mmap.mmap:
    """Return memory of the same size that is never read, for writers after the recording's end.

    It is allocated with the journal: at the end of a run, or in a forked child, there may be no
    memory left. Until something is written there it uses only addresses.

    Raises:
        JournalError: there is no room.
    """
    try:
        return mmap.mmap(-1, size)
    except OSError as error:
        raise _no_room(path, size, error) from error


def move_to_new(path: str, mapped: mmap.mmap) -> OwnDescriptor:
    """Map a new file with the same content at ``mapped`` and name it ``path``.

    It costs some milliseconds, in which no other Python thread runs.

    Returns:
        Its descriptor, with this process's lock; the old descriptor must stay open until no reader
        can still use the old file.

    Raises:
        JournalError: there is no room, or the kernel refuses; nothing has changed.
    """
    size, beside = len(mapped), f"{path}.new"
    fd = _create(beside, size)
    try:
        _copy_and_map(mapped, fd, size)
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.replace(beside, path)  # last: a reader finds the file whole and locked
    except OSError as error:
        _discard(fd, beside)
        raise JournalError(f"replacing the removed journal {path}: {error.strerror}") from error
    return OwnDescriptor(fd)


def _copy_and_map(mapped: mmap.mmap, fd: int, size: int) -> None:
    """Copy mapped memory into the file and map the file in its place.

    Raises:
        OSError: the kernel refuses.
    """
    import ctypes  # 5 ms, and only here

    libc, access = _libc(), mmap.PROT_READ | mmap.PROT_WRITE
    old = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    # Its end closes a descriptor of the file: that must precede the lock.
    with mmap.mmap(fd, size, _SHARED) as new:
        copy = partial(libc.memmove, ctypes.addressof(ctypes.c_char.from_buffer(new)), old, size)
        map_onto = partial(libc.mmap, old, size, access, _SHARED | _ONTO, fd, 0)
        moved = _without_pause(copy, map_onto)
        del copy
    if moved == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _libc() -> Any:
    """Return the C library with calls that do not release the GIL."""
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
    """Return the result of the last of ``calls``; in between no other thread or handler runs.

    Threads and handlers run between two bytecodes, and here are none. Otherwise a row that is
    stored after the copy, into memory that is about to be replaced, would be lost.
    """
    collects = gc.isenabled()
    gc.disable()  # the collector would call back into Python
    try:
        return [*map(call, calls)][-1]
    finally:
        if collects:
            gc.enable()


def close_mapped(buffer: mmap.mmap, of_buffer: list[OwnDescriptor]) -> None:
    """Release memory of `create_mapped`, if that closes no file of the program.

    Raises:
        BufferError: the memory is still referenced.
    """
    if all(descriptor.is_ours() for descriptor in of_buffer):
        buffer.close()
        return
    import ctypes  # 5 ms, and only here

    # It stays alive until the process ends: its end would close another file.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(buffer))


def _create(path: str, size: int) -> int:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | CLOEXEC, 0o600)
    except OSError as error:
        raise JournalError(f"creating the journal {path}: {error.strerror}") from error
    try:
        allocate(fd, size)  # the memory is allocated now: no SIGBUS at a later store
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
