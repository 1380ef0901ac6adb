"""Which files has this process open?"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress


def open_files() -> Counter[str]:
    """How often each is open, by name.

    Of two of these the difference says what has stayed open in between. The number of all says
    less: what other tests have left may be collected meanwhile, and closed.
    """
    found: Counter[str] = Counter()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one of this very list
            found[os.readlink(f"/proc/self/fd/{fd}")] += 1
    return found
