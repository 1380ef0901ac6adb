"""The function that returns the ident of the calling thread, one for the whole process.

gevent replaces ``threading.get_ident`` while a program runs: idents from before and after that
would not identify the same thread.
"""

from __future__ import annotations

from threading import get_ident

__all__ = ["get_ident"]
