"""How does code of the program run once more without a trace: what it prints, what it draws?"""

from __future__ import annotations

import random
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Muted:
    """A stream that takes nothing of one thread, as long as that is to be unnoticed."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._thread = stream, threading.get_ident()
        self.is_over = False

    def write(self, text: str) -> Any:
        if not self.is_over and threading.get_ident() == self._thread:
            return len(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def unnoticed(torch: Any) -> Iterator[None]:
    """What this thread prints inside is dropped; random streams are afterwards as before.

    Python's own, that of numpy where it is loaded, and PyTorch's for CPUs: no device computes.
    """
    before = _streams(torch)
    out = sys.stdout, sys.stderr
    muted = _Muted(sys.stdout), _Muted(sys.stderr)
    sys.stdout, sys.stderr = muted
    try:
        yield
    finally:
        # Who has taken one of them meanwhile goes on writing through it.
        for stream in muted:
            stream.is_over = True
        if (sys.stdout, sys.stderr) == muted:
            sys.stdout, sys.stderr = out
        _put_back(torch, before)


def _streams(torch: Any) -> tuple[Any, Any, Any]:
    numpy = sys.modules.get("numpy")
    drawn = numpy.random.get_state() if numpy is not None else None
    return random.getstate(), drawn, torch.get_rng_state()


def _put_back(torch: Any, before: tuple[Any, Any, Any]) -> None:
    """Only what was used: another thread may have drawn from the others."""
    own, drawn, of_torch = before
    if random.getstate() != own:
        random.setstate(own)
    numpy = sys.modules.get("numpy")
    if numpy is not None and drawn is not None:
        now = numpy.random.get_state()
        if now[2:] != drawn[2:] or not numpy.array_equal(now[1], drawn[1]):
            numpy.random.set_state(drawn)
    if not torch.equal(torch.get_rng_state(), of_torch):
        torch.set_rng_state(of_torch)
