"""Does the process that made a journal still live?

It holds a POSIX record lock on the file from the beginning, which the kernel drops with the process
and no child inherits. Asking takes nothing from the lock, with whatever descriptor it is done.
"""

from __future__ import annotations

import fcntl
import os
import struct

_LOCK = "hhqqi"
"""``struct flock``: type, whence, start, length, pid."""


def has_owner(fd: int) -> bool:
    """Whether another process holds a lock on the open file."""
    ask = struct.pack(_LOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, *_ = struct.unpack(_LOCK, fcntl.fcntl(fd, fcntl.F_GETLK, ask))
    return bool(kind != fcntl.F_UNLCK)
