"""Model of a journal's required behaviour, and a reference journal to compare with.

The model knows neither leases nor blocks. Drawing a slot and storing its row are operations of
their own, as they are for a thread that is interrupted in between.
"""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from otel_mlperf.journal.journal_reader import JournalReader
from otel_mlperf.journal.journal_writer import Journal, Lease
from otel_mlperf.journal.layout import OPEN, OTHER, PAYLOAD_BYTES, ROW, Kind, Word
from otel_mlperf.journal.meta import JournalMeta
from otel_mlperf.journal.ring_scan import PayloadParts, RingScan, rows_of_kind

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 64
ENTRIES = 4
"""Of the open table: so few that it is exhausted now and then."""
META = JournalMeta(
    run_id="r", run_name="n", run_folder="/nowhere", service="s", host="h", pid=1, run_span=7,
    monotonic_ns=5, unix_ns=9,
)  # fmt: skip


class Preempted(RingScan):
    """A reader that loses its processor in the middle of a look."""

    def __init__(self, scan: RingScan, after: int, meanwhile) -> None:
        super().__init__(scan._ring)
        self.next, self.holes = scan.next, scan.holes
        self._after, self._meanwhile = after, meanwhile

    def _published(self, slots, at, twice):
        cut, self._after = self._after, len(self._ring)
        before = super()._published(slots[:cut], at[:cut], twice)
        meanwhile, self._meanwhile = self._meanwhile, lambda: None
        meanwhile()
        return np.concatenate((before, super()._published(slots[cut:], at[cut:], twice)))


@dataclass
class Model:
    """What a journal must do, told without saying how."""

    slot: int = 1
    """The next that is drawn."""
    tail: int = 1
    next: int = 1
    holes: list[int] = field(default_factory=list)
    drawn: dict[int, int] = field(default_factory=dict)
    """Slots that wait for their row, and its span."""
    stored: dict[int, int] = field(default_factory=dict)
    """Published slots and their spans; 0 for what closing writes."""
    taken: list[int] = field(default_factory=list)
    """Slots in the order in which they were read, durably."""
    fresh: list[int] = field(default_factory=list)
    """Slots that were read, but would be read again after the reader's death."""
    lost: dict[int, int] = field(default_factory=dict)
    payloads: dict[int, object] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)

    @property
    def has_room(self) -> bool:
        return self.slot < self.tail + ROWS

    def draw(self, span: int, lost: int) -> int:
        """The slot that the next draw must give; 0 for a drop."""
        if not self.has_room:
            self.lost[lost] = self.lost.get(lost, 0) + 1
            return 0
        slot, self.slot = self.slot, self.slot + 1
        self.drawn[slot] = span
        return slot

    def store(self, slot: int) -> None:
        self.stored[slot] = self.drawn.pop(slot)

    @property
    def unread(self) -> set[int]:
        """The slots that a look must find: holes that were filled, and everything new."""
        return {slot for slot in self.stored if slot >= self.next or slot in self.holes}

    def read(self, found: set[int]) -> None:
        """A look has found something, and may have been preempted before it saw the rest."""
        assert found <= self.unread
        self.fresh += found
        self.holes += range(self.next, max(found, default=0))
        self.next = max(self.next, max(found, default=0) + 1)
        self.holes = [slot for slot in self.holes if slot not in found]
        assert not [slot for slot in self.holes if slot in self.stored]

    def free(self) -> None:
        """What was read is durable; holes that three quarters of the ring lie behind are over."""
        self.taken += self.fresh
        self.fresh = []
        oldest = self.next - ROWS * 3 // 4
        for slot in [slot for slot in self.holes if slot < oldest]:
            self.holes.remove(slot)
            # Whoever was interrupted for so long has lost its row, and must not store it later.
            self.drawn.pop(slot, 0)
            self.stored.pop(slot, 0)
        self.tail = min(self.holes, default=self.next)


class Twin:
    """A journal, its reader, and the model of both."""

    def __init__(self, path: Path) -> None:
        self.writer = Journal(str(path), ROWS, META)
        del self.writer.free[ENTRIES:]
        self.reader = JournalReader(str(path), self.writer.buffer)
        self.reader.new_entries()
        self.model = Model()
        self.is_over = False
        self.leases = [self.writer.lease]
        self.table: dict[int, int] = {}
        """Open sections and the entry of each."""
        self.parts = PayloadParts()
        self.read: list[int] = []
        self.durable: tuple[int, list[int]] = (1, [])
        self.names: dict[int, list[object]] = {}

    # -- the writer

    def draw(self, span: int, lease: Lease, lost: int = Word.LOST_RING_FULL) -> int:
        slot = lease.take()
        if slot >= lease.end:
            slot = self.writer.renew(lease, lost)
        assert slot == self.model.draw(span, lost)
        return slot

    def store(self, slot: int, size: int = ROW.size) -> None:
        """Stores a row, or its first bytes, as a kill in between leaves it."""
        row = row_of(slot, self.model.drawn[slot])
        at = self.writer.shape.ring_at + ((slot & (ROWS - 1)) << 6)
        self.writer.buffer[at : at + ROW.size] = row[:size].ljust(ROW.size, b"\0")
        if row[size:].strip(b"\0") == b"":
            self.model.store(slot)

    def write(self, span: int) -> bool:
        slot = self.draw(span, self.writer.lease)
        if slot:
            self.store(slot)
        return slot != 0

    def enter(self, at: int, span: int, size: int = OPEN.size) -> None:
        """Fills an entry of the open table, or its first bytes."""
        entry = OPEN.pack(*open_of(span))
        self.writer.buffer[at : at + OPEN.size] = entry[:size].ljust(OPEN.size, b"\0")
        if entry[size:].strip(b"\0") == b"":
            self.table[span] = at

    def payload(self, span: int, content: object) -> None:
        parts = -(-(len(msgspec.msgpack.encode(content)) + 4) // PAYLOAD_BYTES)
        is_whole = True
        for _ in range(parts):
            slot = self.model.draw(span, Word.LOST_PAYLOADS)
            is_whole = slot != 0
            if not is_whole:
                break
            self.model.store(slot)
        assert self.writer.payload(span, content) == is_whole
        if is_whole:
            self.model.payloads[span] = content

    def close(self) -> None:
        full = not self.model.has_room
        self.writer.close()
        if full:  # the last slot says it, be there a row or not
            last = self.model.slot - 1
            if last in self.model.drawn:
                self.model.stored[last] = 0
                del self.model.drawn[last]
        else:
            self.model.store(self.model.draw(0, Word.LOST_VALUES))
        self.is_over = True

    # -- the reader

    def poll(self, *, final: bool = False) -> None:
        begin, rows = self.model.next, self.reader.take(final=final)
        seen = rows["seq"].tolist()
        late = list(itertools.takewhile(lambda slot: slot < begin, seen))
        assert late == sorted(late)
        assert seen[len(late) :] == sorted(seen[len(late) :])
        assert set(seen) == self.model.unread
        self.check_rows(rows)

    def preempted_poll(self, after: int, meanwhile) -> None:
        """A look that is interrupted after some slots: what it finds may be out of order."""
        ring = self.reader.ring
        preempted = self.reader.ring = Preempted(ring, after, meanwhile)
        try:
            rows = self.reader.take()
        finally:
            self.reader.ring = ring
        ring.next, ring.holes = preempted.next, preempted.holes
        self.check_rows(rows)

    def check_rows(self, rows: np.ndarray) -> None:
        seen = rows["seq"].tolist()
        assert len(set(seen)) == len(seen)
        self.model.read(set(seen))
        for row in rows:
            span = self.model.stored[int(row["seq"])]
            assert int(row["span"]) == span
            if row["flags"] & 15 == Kind.SECTION:
                assert row.tobytes() == row_of(int(row["seq"]), span)
        self.parts.feed(rows_of_kind(rows, Kind.PAYLOAD))

    def free(self) -> None:
        self.durable = (self.reader.ring.next, list(self.reader.ring.holes))
        self.reader.free()
        self.model.free()
        assert self.reader.word(Word.TAIL) == self.model.tail

    def replace_reader(self) -> None:
        """A reader dies between looking and making durable; the next one goes on."""
        self.reader.close()
        self.reader = JournalReader(self.writer.path, self.writer.buffer)
        self.reader.resume(*self.durable)
        self.reader.new_entries()
        first, holes = self.durable
        self.model.next = first
        self.model.holes = [slot for slot in holes if slot >= self.model.tail]
        self.model.fresh = []

    # -- what holds at the end

    def check_end(self) -> None:
        """Everything that was published is read, once, whatever became of its writer."""
        self.poll(final=True)
        model = self.model
        model.free()
        assert sorted(model.taken) == sorted(model.stored)
        assert len(set(model.taken)) == len(model.taken)
        for span, content in model.payloads.items():
            assert self.parts.pop(span) == content

    def release(self) -> None:
        self.reader.close()
        with contextlib.suppress(BufferError):  # a failure's traceback holds arrays of the file
            self.writer.release()


def row_of(slot: int, span: int) -> bytes:
    """A row whose every field follows from its slot and span."""
    return ROW.pack(slot, slot * 3, span, span ^ 5, span ^ 6, 77, OTHER, Kind.SECTION, slot)


def open_of(span: int) -> tuple[int, ...]:
    """The fields of the entry of an open section."""
    return span, span ^ 5, span ^ 6, 77, 123, OTHER
