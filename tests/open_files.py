"""The open files of a process."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress


def open_files(pid: int | str = "self") -> Counter[str]:
    """How often each is open, by name.

    Of two of these the difference says what has stayed open in between. The number of all says
    less: what other tests have left may be collected meanwhile, and closed.
    """
    found: Counter[str] = Counter()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # that of this very list; one that another process closes
            found[os.readlink(f"/proc/{pid}/fd/{fd}")] += 1
    return found
