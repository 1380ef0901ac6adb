"""File descriptor that is closed only if it still refers to the file that was opened.

The user's program might close descriptors that it has not opened (``os.closerange``, libraries that
start daemons). The closed numbers can then be reused for files of the program, which must stay
open.
"""

from __future__ import annotations

import os

from otel_mlperf.foreign_errors import raise_foreign
from otel_mlperf.portability import open_descriptors


class OwnDescriptor:
    """File descriptor with the identity (device and inode) of the file that was opened."""

    __slots__ = ("_identity", "fd")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._identity = _identity_of(fd)

    def is_ours(self) -> bool:
        """Return whether the descriptor still refers to the original file (costs 1 µs)."""
        try:
            return _identity_of(self.fd) == self._identity
        except OSError as error:
            raise_foreign(error)
            return False

    def close(self) -> None:
        """Close the descriptor if it still refers to the original file; may be called repeatedly.

        Raises:
            OSError: closing fails.
        """
        if self.fd >= 0 and self.is_ours():
            os.close(self.fd)
        self.fd = -1


def own_descriptors(fd: int) -> list[OwnDescriptor]:
    """Return all other descriptors of this process that refer to the same file as ``fd``."""
    wanted, found = _identity_of(fd), []
    for other in open_descriptors():
        try:
            if other != fd and _identity_of(other) == wanted:
                found.append(OwnDescriptor(other))
        except OSError as error:  # the descriptor that open_descriptors() itself used is closed
            raise_foreign(error)
    return found


def _identity_of(fd: int) -> tuple[int, int]:
    about = os.fstat(fd)
    return about.st_dev, about.st_ino
