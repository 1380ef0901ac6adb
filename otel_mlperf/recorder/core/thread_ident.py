"""One function for the whole process that returns the number of the calling thread.

gevent replaces ``threading.get_ident`` while a program runs: numbers before and after that would
belong to no common thread.
"""

from __future__ import annotations

from threading import get_ident

__all__ = ["get_ident"]
