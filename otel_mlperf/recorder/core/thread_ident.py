"""The ``get_ident`` function that all modules share: returns the ident of the calling thread.

gevent replaces ``threading.get_ident`` while a program runs. The original and the replacement
return different idents for the same thread, so the function is looked up once per process.
"""

from __future__ import annotations

from threading import get_ident

__all__ = ["get_ident"]
