"""Thread that moves rows from filling journals to the queue while the agent processes events."""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_mlperf.agent.intake.event_queue import EventQueue

_log = logging.getLogger("otel_mlperf.agent")
_GLANCE_S: Final = 0.02


class Spiller(threading.Thread):
    """Thread that looks for nearly full journals while the agent is busy; otherwise it sleeps."""

    def __init__(self, queue: EventQueue) -> None:
        super().__init__(name="otel_mlperf spiller", daemon=True)
        self._queue = queue
        self._at_work, self._ended = threading.Event(), threading.Event()

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Mark the agent as busy for the duration of the context."""
        self._at_work.set()
        try:
            yield
        finally:
            self._at_work.clear()

    def run(self) -> None:
        """Spill until the thread is stopped or a journal cannot be read."""
        while self._at_work.wait() and not self._ended.wait(_GLANCE_S):
            try:
                self._queue.spill()
            except Exception:  # noqa: BLE001 - the agent meets it at its next look, and ends
                _log.exception("the journals cannot be read")
                return

    def stop(self) -> None:
        """End the thread, if it was started, and wait until it has ended."""
        self._ended.set()
        self._at_work.set()
        if self.is_alive():
            self.join()
