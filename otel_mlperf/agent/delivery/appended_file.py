"""Appending to a file so that a kill or a full disk leaves no partial record.

The caller stores the size of the complete part after each write. The next write truncates the file
to that size first.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

from otel_mlperf.whole_file import make_folder, open_private

if TYPE_CHECKING:
    from pathlib import Path


def write_at(path: Path, size: int, body: bytes) -> int:
    """Truncate the file to ``size`` bytes and append ``body``; return the new size.

    Raises:
        OSError: the file cannot be written.
    """
    make_folder(path.parent)
    with ExitStack() as closing:
        file = closing.enter_context(open(path, "ab", buffering=0, opener=open_private))
        # The file may have been removed or truncated in the meantime: append to its current end.
        size = min(size, file.seek(0, os.SEEK_END))
        file.truncate(size)
        rest = memoryview(body)
        while rest:
            rest = rest[file.write(rest) :]
        os.fsync(file.fileno())
    return size + len(body)
