"""Append to a file such that a kill or a full disk leaves no partial record behind.

The writer notes the size of the complete part after each write. Anything behind that size is
truncated by the next write.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

from otel_mlperf.whole_file import make_folder, open_private

if TYPE_CHECKING:
    from pathlib import Path


def write_at(path: Path, size: int, body: bytes) -> int:
    """Write ``body`` behind the first ``size`` bytes of a file; return the new size.

    Raises:
        OSError: the disk refuses.
    """
    make_folder(path.parent)
    with ExitStack() as closing:
        file = closing.enter_context(open(path, "ab", buffering=0, opener=open_private))
        # The file may have been removed or truncated since: what is there is kept.
        size = min(size, file.seek(0, os.SEEK_END))
        file.truncate(size)
        rest = memoryview(body)
        while rest:
            rest = rest[file.write(rest) :]
        os.fsync(file.fileno())
    return size + len(body)
