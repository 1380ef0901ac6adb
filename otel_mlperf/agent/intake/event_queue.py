"""Queue of events that are logged, but not processed yet.

Programs can write rows faster than the agent can process them. Events are queued in order. A large
backlog is only on disk (in the event log), so that the backlog does not occupy memory.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_mlperf.agent.intake.pieces import MAX_ROWS
from otel_mlperf.agent.intake.write_ahead_log import Place
from otel_mlperf.agent.model.events import Left, Mark, Polled
from otel_mlperf.journal.layout import ROW_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from otel_mlperf.agent.intake.tail import Tail
    from otel_mlperf.agent.intake.write_ahead_log import Log
    from otel_mlperf.agent.model.events import Event, Seen

MARK_ROWS: Final = MAX_ROWS
"""Maximum number of new rows, over all journals, between two marks."""
_MEMORY_BYTES: Final = 4 << 20
"""Maximum size of queued events in memory. Further events are read from the log when they are
due."""
_SEGMENT_BYTES: Final = 16 << 20
"""Size above which a new log segment starts, because a replay reads whole segments into memory."""


class Batch(NamedTuple):
    """Batch of events that were queued by one call."""

    begin: Place | None
    """Place of the events in the log; None if the events could not be written."""
    size: int
    """Size in the log, in bytes."""
    events: Sequence[Event] | None
    """None if the events are only in the log."""


class EventQueue:
    """Queue of the events of one node, between the journals and the derivation.

    Args:
        log: the event log.
        tail: reader of the journals. Slots are freed after the log contains the rows.
        most_bytes: maximum size of queued events. Above this size, ``spill`` leaves rows in the
            rings.
    """

    def __init__(self, log: Log, tail: Tail, most_bytes: int) -> None:
        self._log, self._tail, self._max_bytes = log, tail, most_bytes
        self.lock = threading.RLock()
        """Must be held from polling the journals until the events are queued, to keep their
        order."""
        self._waiting: deque[Batch] = deque()
        self._put = self._taken = 0
        self._rows = 0
        """Number of rows since the last mark."""
        self._refused: list[Event] = []
        self._failure: Exception | None = None
        self.held_bytes = 0
        """Size in the log of the events that are queued in memory."""
        self.waiting_bytes = 0
        """Size in the log of all queued events, including events that are only on disk."""

    @property
    def is_behind(self) -> bool:
        """Return whether events are queued that have not been processed."""
        return bool(self._waiting)

    @property
    def is_refused(self) -> bool:
        """Return whether there are events that could not be written to the log."""
        return bool(self._refused)

    def put(self, events: Sequence[Event]) -> None:
        """Log and queue events, then free the journal slots of the logged rows.

        Events must be logged before they are processed, because after a crash everything is derived
        again from the log. If events cannot be written, the next call retries, and the events' rows
        stay in the rings.
        """
        with self.lock:
            self._store(events)
            self._free()

    def _store(self, events: Sequence[Event]) -> None:
        if self._failure is not None:
            raise self._failure
        if self._refused and self._log.append(self._refused):
            self._refused.clear()
        if self._log.end.at > _SEGMENT_BYTES:
            self._log.next_segment()
        begin = self._log.end
        is_durable = not self._refused and self._log.append(events)
        if not is_durable:
            self._refused += events
        if events:
            self._add(events, begin if is_durable else None)

    def _free(self) -> None:
        if not self._refused:
            self._tail.durable()

    def _add(self, events: Sequence[Event], begin: Place | None) -> None:
        size = self._log.end.at - begin.at if begin else 0
        in_memory = begin is None or not self.held_bytes or self.held_bytes + size <= _MEMORY_BYTES
        self.held_bytes += size if in_memory else 0
        self.waiting_bytes += size
        self._waiting.append(Batch(begin, size, events if in_memory else None))
        self._put += 1
        self._rows += sum(len(e.rows) for e in events if isinstance(e, Polled)) // ROW_BYTES

    def look(self) -> None:
        """Queue the new rows of all journals, with a mark after every MARK_ROWS rows."""
        with self.lock:
            self._take_in(self._tail.poll)

    def spill(self) -> None:
        """Queue rows of journals that fill up, to make room while earlier rows are processed.

        If the log cannot be written, or too many events are queued, no rows are moved. The journals
        then fill up and count the rows that they drop.
        """
        with self.lock:
            if self._refused or self._failure or self.waiting_bytes > self._max_bytes:
                return
            if self._tail.is_filling:
                self._take_in(self._tail.poll_rows)

    def mark(self) -> Mark:
        """Queue new rows and ends of the journals, followed by a mark; return the mark."""
        with self.lock:
            seen = self._take_in(self._tail.poll)
            mark = Mark(time.monotonic_ns(), time.time_ns(), seen, not len(self._tail))
            self.put([mark])
            self._rows = 0
            return mark

    def _take_in(self, poll: Callable[[], Iterator[Event]]) -> dict[str, Seen]:
        try:
            # Read the open table before and after the rows: a section that ends in between is only
            # in the first table, and its children in this poll need it as parent.
            before = self._tail.seen()
            new = poll()
            seen = self._tail.seen(before)
            # Includes journals that this poll reads to their end, which ``seen`` lacks.
            halfway = before | seen
            for event in new:
                rows = len(event.rows) // ROW_BYTES if isinstance(event, Polled) else 0
                if self._rows and self._rows + rows > MARK_ROWS:
                    self._store([Mark(time.monotonic_ns(), time.time_ns(), dict(halfway))])
                    self._rows = 0
                if isinstance(event, Left):
                    # Later marks need no state of the journal: the event contains its last state.
                    halfway.pop(event.journal, None)
                self._store([event])
            # Free slots only now, because freed slots may be overwritten.
            self._free()
        except Exception as error:
            # Rows may have been read but not queued: never free slots again, to preserve the rows.
            self._failure = error
            raise
        return seen

    def take_waiting(self) -> Iterator[Sequence[Event]]:
        """Remove and yield, in order, the batches that are queued when the iteration starts."""
        until = self._put
        while self._taken < until:
            with self.lock:
                batch = self._waiting.popleft()
                self._taken += 1
                self.waiting_bytes -= batch.size
                self.held_bytes -= 0 if batch.events is None else batch.size
            if batch.events is not None:
                yield batch.events
            elif batch.begin is not None:
                yield self._log.read(batch.begin, batch.size)

    def cut(self) -> Place:
        """Start a new log segment; return its start, or that of the first unprocessed event."""
        with self.lock:
            place = Place(self._log.next_segment())
            first = self._waiting[0].begin if self._waiting else place
            return first or place

    def contained(self) -> None:
        """If all events are processed, forget those that could not be logged.

        Must be called after a state that contains the processed events was written.
        """
        with self.lock:
            if not self._waiting:
                self._refused.clear()
                self._tail.durable()

    def sync(self) -> None:
        """Sync the log to disk, so that it survives a crash of the machine."""
        with self.lock:
            handle = self._log.handle()
        # Sync without the lock, because a disk may be slow and journals must be spilled in the
        # meantime.
        if handle >= 0:
            try:
                getattr(os, "fdatasync", os.fsync)(handle)  # macOS lacks fdatasync
            finally:
                os.close(handle)
