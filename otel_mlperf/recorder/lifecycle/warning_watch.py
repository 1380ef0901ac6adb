"""Delivery of the agent's warnings to the user's callbacks and to the terminal.

Warnings are delivered when a step starts in the main thread, each once until it has cleared. No
server is needed.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from otel_mlperf.foreign_errors import raise_foreign
from otel_mlperf.recorder.core import program_callbacks
from otel_mlperf.recorder.core.faults import internal_error, log
from otel_mlperf.recorder.core.thread_ident import get_ident

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_mlperf.journal.bulletin import RunWarning
    from otel_mlperf.recorder.lifecycle.recorder import Recorder

_INTERVAL_NS = 1_000_000_000


class WarningWatch:
    """Watcher of one run's warnings, which reports each once until it has cleared."""

    def __init__(self, recorder: Recorder) -> None:
        from otel_mlperf.journal import bulletin as file

        self._recorder = recorder
        self._folder, self._own = os.path.split(recorder.journal.path)
        self._path = os.path.join(self._folder, file.FILE)
        self._read = file.read_readings
        self._due_ns = self._changed_ns = 0
        self._reported: set[Any] = set()

    def look(self, now_ns: int) -> None:
        """Check for new warnings at most once a second, in the main thread only."""
        if now_ns < self._due_ns or get_ident() != threading.main_thread().ident:
            return
        self._due_ns = now_ns + _INTERVAL_NS
        try:
            changed_ns = os.stat(self._path).st_mtime_ns
        except OSError as error:
            raise_foreign(error)
            return
        # The file is always replaced as a whole: an unchanged time means unchanged content.
        if changed_ns != self._changed_ns:
            self._changed_ns = changed_ns
            published = self._read(self._folder)
            if published is not None:
                self._deliver(of_rank(self._own, published.warnings))

    def _deliver(self, warnings: list[RunWarning]) -> None:
        # Remove cleared warnings first, so that they are reported again when they recur.
        active_now = {_key(warning): warning for warning in warnings}
        self._reported &= active_now.keys()
        for key, warning in active_now.items():
            if key not in self._reported:
                self._reported.add(key)
                self._log(warning)
                program_callbacks.WARNING.tell(warning)

    def _log(self, warning: RunWarning) -> None:
        """Log a warning on the terminal; local rank 0 also logs the warnings of the node."""
        if self._recorder.config.console and (
            warning.journal or self._recorder.meta.local_rank == 0
        ):
            try:
                log.warning("%s. %s", warning.summary, warning.action)
            except Exception as error:  # noqa: BLE001 - a broken log handler of the program
                internal_error(error)


def of_rank(own: str, items: Iterable[Any]) -> list[Any]:
    """Return the items of the node and of the rank whose journal has the file name ``own``."""
    return [item for item in items if item.journal in ("", own)]


def _key(warning: RunWarning) -> tuple[Any, ...]:
    return (warning.rule, warning.journal, *warning.labels.values())
