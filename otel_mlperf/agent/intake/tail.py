"""Reader of all journals in a folder, which converts new content to events.

The slots of rows are freed only after the events with the rows are durable.
"""

from __future__ import annotations

import os
import time
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_mlperf.agent.intake.open_journals import OpenJournals
from otel_mlperf.agent.intake.pieces import cut_rows
from otel_mlperf.agent.model.events import Event, Joined, Left, Named, Polled, Seen
from otel_mlperf.journal.journal_reader import OPEN_TYPE
from otel_mlperf.journal.layout import ROW_BYTES, Word

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from otel_mlperf.agent.intake.pieces import Piece
    from otel_mlperf.agent.model.agent_state import AgentState
    from otel_mlperf.journal.journal_reader import JournalReader
    from otel_mlperf.journal.meta import JournalMeta

COUNTED: Final = (
    Word.LOST_RING_FULL,
    Word.LOST_PAYLOADS,
    Word.LOST_OPEN,
    Word.LOST_ENTRIES,
    Word.LOST_CELLS,
    Word.LOST_VALUES,
    Word.INTERNAL_ERRORS,
    Word.REDACTED,
    Word.STATE,
    Word.STEP_TIME,
    Word.END_TIME,
    Word.FAILED,
    Word.WATCH_TIME,
)


class Tail:
    """Reader of all journals in one folder.

    Args:
        folder: folder of the journals.
        own: memory maps of the journals that this process itself writes, by path. These files must
            not be opened again: closing such a file would release its lock.
        take_over: called before a journal is opened: stops the ``FirstLook`` thread, which until
            then freed the journals' slots.
    """

    def __init__(
        self,
        folder: Path,
        own: dict[str, mmap.mmap] | None = None,
        take_over: Callable[[], None] = lambda: None,
    ) -> None:
        self.folder = folder
        self._open = OpenJournals(folder, own or {}, take_over)
        self._readers = self._open.readers
        self._unread: dict[str, int] = {}
        self._alive_ns: dict[str, int] = {}
        self.fullness = 0.0
        """Maximum share of new rows in a ring at the last poll."""

    def __len__(self) -> int:
        return len(self._readers)

    def resume(self, state: AgentState) -> None:
        """Continue reading at the positions in the state of a previous agent."""
        for name, journal in state.journals.items():
            if not journal.left and self._reopen(name):
                self._readers[name].resume(journal.next, journal.holes)
        for name in state.finished:
            # Read to its end by an agent that ended before it could remove the file.
            if self._reopen(name):
                self._open.end(name)

    def _reopen(self, name: str) -> bool:
        is_open = self._open.open(name)
        if is_open:
            self._note_alive(name)
        return is_open

    def _note_alive(self, name: str) -> None:
        # At the last sign of life of the previous agent, the process was alive. It may have ended
        # since.
        self._alive_ns[name] = self._readers[name].counted([Word.BEAT]).get(Word.BEAT, 0)

    def missing(self, state: AgentState) -> list[Event]:
        """Return an end event for each open journal in ``state`` without a readable file."""
        self._open.refresh()
        return [
            Left(name, journal.alive_ns, journal.open, journal.cells, journal.words, is_whole=False)
            for name, journal in state.journals.items()
            if name not in self._readers and not journal.left
        ]

    def find(self) -> list[Joined]:
        """Open the folder's new journals; return an event for each opened journal."""
        new = self._open.open_new()
        for name in new:
            self._note_alive(name)
        return [Joined(name, self._readers[name].meta) for name in new]

    def poll(self) -> Iterator[Event]:
        """Return new entries and rows as events, and the end of each ended journal.

        Everything is read now, and returned in events of limited size. If a rank's main journal has
        ended, the same poll reads the new journals of its forked children: the run's span must not
        be derived before the spans of the children.
        """
        joined: list[Event] = []
        found: list[Iterable[Event]] = []
        self.fullness = 0.0
        names = list(self._readers)
        while names:
            for name in names:
                found += self._poll_journal(name, self._readers[name])
            new = self.find() if self.ended_main else []
            joined += new
            names = [event.journal for event in new]
        return chain(joined, chain.from_iterable(found))

    def _poll_journal(self, name: str, reader: JournalReader) -> Iterator[Iterable[Event]]:
        # Must run before the rows are read: if the process ends afterwards, the next poll reads the
        # remaining rows.
        now, owned = time.monotonic_ns(), reader.is_owned
        if owned:
            self._alive_ns[name] = now
        yield self._new_of(name, reader, final=not owned)
        if not owned or reader.is_closed:
            yield [self._end_event(name, reader)]
            self._open.end(name)

    def poll_rows(self) -> Iterator[Event]:
        """Return new entries and rows as events, without ends of journals."""
        found = [self._new_of(name, reader) for name, reader in self._readers.items()]
        return chain.from_iterable(found)

    @property
    def is_filling(self) -> bool:
        """Return whether a journal fills up; False if a truncated journal needs repair first."""
        readers = self._readers.values()
        return any(r.ring.is_filling() for r in readers) and not any(r.is_cut for r in readers)

    def _new_of(self, name: str, reader: JournalReader, *, final: bool = False) -> Iterator[Event]:
        begin, rows = reader.ring.next, reader.take(final=final)
        # Read entries after the rows, so that all entries to which the rows refer are registered.
        entries, damaged = reader.new_entries(), reader.damaged_entries()
        # But put their event first, because rows refer to entries by number.
        named = [Named(name, entries, damaged)] if entries or damaged else []
        if not len(rows) + (lost := reader.take_lost_count()):
            return iter(named)
        self._unread[name] = max(self._unread.get(name, 0), min(len(rows), reader.rows))
        self.fullness = max(self.fullness, len(rows) / reader.rows)
        pieces = cut_rows(rows, begin, reader.ring.next, list(reader.ring.holes))
        return chain(named, _polled(name, pieces, lost))

    @property
    def is_pressing(self) -> bool:
        """Return whether a journal fills up, has ended or was truncated. Cheaper than a poll."""
        return any(reader.is_pressing for reader in self._readers.values())

    def seen(self, before: dict[str, Seen] | None = None) -> dict[str, Seen]:
        """Return a snapshot of open table, cells and counters of each journal, by name.

        The tables contain the open sections, and those that were open in ``before``, the snapshots
        from before a poll: rows of the poll can have these sections as parent.
        """
        seen = {}
        for name, reader in self._readers.items():
            table, alive_ns = reader.open_sections().tobytes(), self._alive_ns[name]
            if before and name in before:
                table = _union(table, before[name].open)
            seen[name] = Seen(table, reader.cells().tobytes(), reader.counted(COUNTED), alive_ns)
        return seen

    def durable(self) -> None:
        """Free the slots of the last poll. The events of that poll must already be durable."""
        now = time.monotonic_ns()
        for reader in [*self._readers.values(), *self._open.ended.values()]:
            reader.free()
            reader.set_word(Word.DURABLE, reader.ring.next - 1)
            reader.set_word(Word.BEAT, now)
            reader.set_word(Word.AGENT_PID, os.getpid())

    @property
    def tables_requested_ns(self) -> int:
        """Return when tables were last requested, in monotonic ns; 0 if there was no request."""
        times_ns = (reader.word(Word.TABLES_REQUESTED) for reader in self._readers.values())
        return max(times_ns, default=0)

    def stored(self, until_ns: int, state: AgentState) -> None:
        """Report to the processes that the tables contain ``state``, and remove ended journals.

        ``until_ns`` is the monotonic time at which the last poll started.
        """
        for name, reader in self._readers.items():
            if name in state.journals:
                reader.set_word(Word.STORED, state.journals[name].next - 1)
                reader.drop_moved(state.journals[name].next)
            reader.set_word(Word.TABLES_UNTIL, until_ns)
        for reader in self._open.ended.values():
            reader.set_word(Word.STORED, max(reader.ring.next - 1, reader.word(Word.HEAD)))
        self._open.remove_ended()

    def still_there(self, names: list[str]) -> list[str]:
        """Return the journal names among ``names`` for which a file still exists."""
        return [name for name in names if (self.folder / name).exists()]

    @property
    def ended_main(self) -> bool:
        """Return whether a main journal (not of a forked child) has ended but is not stored yet."""
        return any(not reader.meta.is_child for reader in self._open.ended.values())

    def mains(self) -> dict[str, JournalMeta]:
        """Return the metadata of each rank's main journal, by journal name."""
        return {n: r.meta for n, r in self._readers.items() if not r.meta.is_child}

    def stepping(self) -> set[str]:
        """Return the names of the main journals of processes that have started a step."""
        return {name for name in self.mains() if self._readers[name].word(Word.STEP_TIME)}

    def take_fullest(self) -> dict[int, tuple[int, int]]:
        """Return unread bytes and ring size in bytes, by pid of each rank's main process.

        Both values are from the fullest journal of the rank's main process and forked children. The
        unread bytes are the maximum of all polls since the last call.
        """
        fullest: dict[int, tuple[int, int]] = {}
        pids = {meta.rank: meta.pid for meta in self.mains().values()}
        for name, reader in self._readers.items():
            pid, rows = pids.get(reader.meta.rank), reader.rows
            if pid is not None:
                unread = self._unread.get(name, 0)
                max_unread, limit = fullest.get(pid, (0, 0))
                if unread * limit >= max_unread * rows:
                    fullest[pid] = unread * ROW_BYTES, rows * ROW_BYTES
        self._unread.clear()
        return fullest

    def close(self) -> None:
        """Close all journals."""
        self._open.close()

    def _end_event(self, name: str, reader: JournalReader) -> Left:
        return Left(
            name,
            self._alive_ns.pop(name),
            reader.open_sections().tobytes(),
            reader.cells().tobytes(),
            reader.counted(COUNTED),
            reader.damaged(),
        )


def _polled(name: str, pieces: Iterator[Piece], lost: int) -> Iterator[Polled]:
    for piece in pieces:
        yield Polled(name, piece.next, piece.holes, piece.rows.tobytes(), lost, piece.around)
        lost = 0


def _union(now: bytes, before: bytes) -> bytes:
    both = np.frombuffer(now + before, OPEN_TYPE)
    _, first = np.unique(both["span"], return_index=True)
    return both[np.sort(first)].tobytes()
