"""How much memory do this process and its children hold, without counting shared pages twice?"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_PSS: Final = re.compile(rb"^Pss:\s+(\d+) kB$", re.MULTILINE)


def read_memory(workers: Iterable[int] = (), proc: Path = Path("/proc")) -> int | None:
    """Bytes of this process and ``workers``, by their ids; None where the kernel does not say.

    A page that several processes share counts for each with its part.
    """
    sizes = [_pss(proc / str(pid) / "smaps_rollup") for pid in (os.getpid(), *workers)]
    return None if sizes[0] is None else sum(size or 0 for size in sizes)


def _pss(file: Path) -> int | None:
    try:
        found = _PSS.search(file.read_bytes())
    except OSError:  # it has ended, or the kernel has no such file
        return None
    return int(found[1]) * 1024 if found else None
