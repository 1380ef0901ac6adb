"""Queue of durable events that wait to be processed.

Programs may make rows faster than the agent can process them. Durable events wait in order. Large
backlogs wait on disk alone, so that memory does not grow with the backlog.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_mlperf.agent.intake.pieces import MOST_ROWS
from otel_mlperf.agent.intake.write_ahead_log import Place
from otel_mlperf.agent.model.events import Left, Mark, Polled
from otel_mlperf.journal.layout import ROW_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from otel_mlperf.agent.intake.tail import Tail
    from otel_mlperf.agent.intake.write_ahead_log import Log
    from otel_mlperf.agent.model.events import Event, Seen

MARK_ROWS: Final = MOST_ROWS
"""Maximum number of new rows of all journals that are processed together."""
_HELD_BYTES: Final = 4 << 20
"""Maximum size of events that wait in memory; the rest is read from the log in its turn."""
_SEGMENT_BYTES: Final = 16 << 20
"""A new agent reads a segment as a whole."""


class Batch(NamedTuple):
    """Batch of events that were put together."""

    begin: Place | None
    """Place in the log; None: the disk refused them."""
    size: int
    """Size in the log, in bytes."""
    events: Sequence[Event] | None
    """None: the events are in the log alone."""


class EventQueue:
    """Queue of the events of one node, between the journals and the derivation.

    Args:
        log: where they are durable.
        tail: the journals; its slots are freed once their rows are in the log.
        most_bytes: maximum size of waiting events; beyond it rows stay where they are.
    """

    def __init__(self, log: Log, tail: Tail, most_bytes: int) -> None:
        self._log, self._tail, self._most = log, tail, most_bytes
        self.lock = threading.RLock()
        """Must be held from a look at the journals until its events are put, so that order is kept.
"""
        self._waiting: deque[Batch] = deque()
        self._put = self._taken = 0
        self._rows = 0
        """Number of rows since the last mark."""
        self._refused: list[Event] = []
        self._failure: Exception | None = None
        self.held_bytes = 0
        """Size in the log of the events that wait in memory."""
        self.waiting_bytes = 0
        """Size of all waiting events, including those on disk alone."""

    @property
    def is_behind(self) -> bool:
        """Return whether events wait."""
        return bool(self._waiting)

    @property
    def is_refused(self) -> bool:
        """Return whether there are events that the disk has refused."""
        return bool(self._refused)

    def put(self, events: Sequence[Event]) -> None:
        """Log events and queue them; the journals' slots of their rows are then freed.

        Log first, then act: everything derived from an event can be derived again only from the
        log. Events that the disk refused wait for the next try, and their rows stay in the ring.
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
        is_held = begin is None or not self.held_bytes or self.held_bytes + size <= _HELD_BYTES
        self.held_bytes += size if is_held else 0
        self.waiting_bytes += size
        self._waiting.append(Batch(begin, size, events if is_held else None))
        self._put += 1
        self._rows += sum(len(e.rows) for e in events if isinstance(e, Polled)) // ROW_BYTES

    def look(self) -> None:
        """Put what is new in the journals, with a mark wherever that is large."""
        with self.lock:
            self._take_in(self._tail.poll)

    def spill(self) -> None:
        """Make room in the journals that fill up, while earlier rows are being processed.

        If the disk refuses, or too much waits, nothing is moved. The journals then fill up, and
        count what they lose.
        """
        with self.lock:
            if self._refused or self._failure or self.waiting_bytes > self._most:
                return
            if self._tail.is_filling:
                self._take_in(self._tail.poll_rows)

    def mark(self) -> Mark:
        """Put what is new in the journals, including ends, and a mark that starts derivation."""
        with self.lock:
            seen = self._take_in(self._tail.poll)
            mark = Mark(time.monotonic_ns(), time.time_ns(), seen, not len(self._tail))
            self.put([mark])
            self._rows = 0
            return mark

    def _take_in(self, poll: Callable[[], Iterator[Event]]) -> dict[str, Seen]:
        """Put what a look finds, with marks in between.

        Return the state of the journals at that time.
        """
        try:
            # The open table is read before and after the rows. A section that ends in between is in
            # the first table, and its children in this poll need it as parent.
            before = self._tail.seen()
            new = poll()
            seen = self._tail.seen(before)
            # Journals that have ended are read to their end: they are in the first table alone.
            halfway = before | seen
            for event in new:
                rows = len(event.rows) // ROW_BYTES if isinstance(event, Polled) else 0
                if self._rows and self._rows + rows > MARK_ROWS:
                    self._store([Mark(time.monotonic_ns(), time.time_ns(), dict(halfway))])
                    self._rows = 0
                if isinstance(event, Left):
                    # The event contains what was seen last, and the next mark is the journal's
                    # last.
                    halfway.pop(event.journal, None)
                self._store([event])
            # Once, after all of it, because freed slots may be overwritten.
            self._free()
        except Exception as error:
            # Rows were perhaps removed and not put: no slot may be freed any more.
            self._failure = error
            raise
        return seen

    def take_waiting(self) -> Iterator[Sequence[Event]]:
        """Yield the batches that wait by now, as they were put; later ones are left."""
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
        """Return where unprocessed events start in the log.

        A new segment starts for further events.
        """
        with self.lock:
            place = Place(self._log.next_segment())
            first = self._waiting[0].begin if self._waiting else place
            return first or place

    def contained(self) -> None:
        """Drop refused events that a state contains: they need no log any more."""
        with self.lock:
            if not self._waiting:
                self._refused.clear()
                self._tail.durable()

    def sync(self) -> None:
        """Sync the log to disk, so that it survives if the machine stops."""
        with self.lock:
            handle = self._log.handle()
        # Not under the lock: a disk may be slow, and journals fill up in the meantime.
        if handle >= 0:
            try:
                getattr(os, "fdatasync", os.fsync)(handle)  # macOS lacks the first
            finally:
                os.close(handle)
