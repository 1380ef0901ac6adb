"""Layout of a journal file: the one description that writer and reader share.

A journal is one file per process in shared memory, little-endian, in five parts::

    header    4,096 bytes   512 words of 8 bytes; from word 128 on the metadata (MessagePack)
    cells     64 bytes each counters, gauges, histograms, aggregated sections
    table     48 bytes each sections that are open right now
    entries   64 bytes each what numbers stand for (names, tracks, cells): append-only
    ring      64 bytes each rows: what happened, newest over oldest

**Rows** are published by their last word: a row counts when ``seq`` equals its slot number (a
counter from 1; slot s is stored at ``s & (rows - 1)``). The fields by kind:

=========  ==========  ===========  ========  ==============  ==========  ===== ==============
kind       start       end          span      parent          root        track name
=========  ==========  ===========  ========  ==============  ==========  ===== ==============
SECTION    start       end          its id    enclosing id    trace root  track section entry
BEGIN      start       number       its id    run-trace id    n           track section entry
CANCEL     start       end          its id    enclosing id    trace root  track section entry
VALUE      time        float bits   its id    number          trace root  track section entry
FOREIGN    id, high    id, low      root key  1: unsampled    0           0     0
PAYLOAD    44 bytes of text at 0:16 and 24:52, span id at 16
MARK       time        0            number    step            0           0     mark entry
=========  ==========  ===========  ========  ==============  ==========  ===== ==============

Times are nanoseconds of CLOCK_MONOTONIC. ``root`` is the span that makes the trace: a step, the
run, or a key that a FOREIGN row has bound to a trace of another process or library. A root writes
BEGIN before anything inside it; *number* is the user's step number, *n* counts from 0 in this
process and phase (both signed). A VALUE row's ``span`` is the section in which ``log()`` was
called. A MARK is a point since which the program may query its section statistics; a later mark
with the same number replaces it. A mark that the program sets has a name and the number of its
step; the entry of other marks is 0.

**Payloads.** What does not fit a row (attributes, an exception) is a MessagePack map. It is written
as PAYLOAD rows of the same span id *before* the row that they belong to, whose flag HAS_PAYLOAD is
then set. The payload of a FOREIGN row has its root key instead. A payload with ``d`` (see
``contents``) belongs to no row. Text = 4-byte length + bytes, cut into parts; part number and
count are in the flags.

**Entries** are chunks of the same form as PAYLOAD rows: ``span`` is the entry's number, ``seq`` the
chunk's number from 1, which is its place too. The MessagePack content is an array whose first item
is its kind::

    ["section", name, category, phase, {constant attributes}]
    ["track", ident, native thread id, thread name, is_task]
    ["cell", "counter" | "updowncounter" | "gauge" | "histogram", metric name, unit,
     [[label, value], ...]]
    ["cell", "aggregate", name, category, enclosing name, phase, section entry, section path,
     aggregates inside, of step?, beside?, since]

**Cells** are eight words, the first the entry number (stored when a cell is taken), the rest by
kind::

    counter, gauge, …    value (float64; nan: a gauge that nobody has set)
    aggregate            count, sum, min, max, covered, min and max before (ns)
    histogram, HEAD      sum (float64), zeros, min, max (both float64; inf and -inf at first), -, -
    histogram, EXEMPLAR  value (float64), monotonic ns, span, root, the four xor-ed, -
    histogram, buckets   counts of six buckets one after the other

The last word of a histogram's cell identifies it (HistogramCell): BUCKETS_AT + b for the cell that
starts with bucket 6 b. Bucket i counts values above base**i and up to base**(i + 1) with
base = 2**2**-HISTOGRAM_SCALE; the count of a histogram is that of its buckets and zeros.

An aggregate has a cell for each thread that added to it: a reader adds up the cells with the same
entry number. Its *sum* minus what sections inside have *covered* is its own time. That time is
subtracted from the section whose entry is named (0: from none), and outside steps from the section
of that path (names below the run). *since* is the monotonic time before which it was not called. A
step contains in its payload, as ``g``, its share of each aggregate: entry, ns after its start,
count, sum, covered, min and max of each. Min and max of a cell are then those since the step, and
the previous ones are stored next to them.
"""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag
from typing import Final

MAGIC: Final = int.from_bytes(b"OTELMLP1", "little")
WORD: Final = 8
HEADER_BYTES: Final = 4096
META_AT: Final = 1024
"""Byte offset of the metadata: a 4-byte length, then a MessagePack map."""
META_BYTES: Final = HEADER_BYTES - META_AT - 4
"""Maximum size of the metadata."""
ROW_BYTES: Final = 64
CELL_BYTES: Final = 64
CHUNK_BYTES: Final = 64
OPEN_BYTES: Final = 48
MAX_ENTRIES: Final = 4096
"""Maximum number of entry numbers; later names are recorded as OTHER."""
OTHER: Final = 1
"""The entry number that stands for every name beyond the limit."""
PAYLOAD_BYTES: Final = 44
MAX_PARTS: Final = 4095
MOST_LABEL_SETS: Final = 2000
"""Maximum number of series with labels in one journal; later ones are added up in one series per
name.
"""
HISTOGRAM_SCALE: Final = 3
"""Eight buckets for each doubling: a value is known to within 4.5 %."""
BUCKETS_IN_CELL: Final = 6
BUCKETS_AT: Final = 1 << 32

START: Final = 0
EPOCH: Final = 1
ASKED: Final = (2, 3)
"""Numbers of the marks that the package sets: the run's start, the epoch's start, and queries in
turn. There are two of the latter: during one query the mark of the previous one is still needed.
"""
FIRST_OWN: Final = 4
"""First number of the program's own marks."""
MOST_OWN: Final = 16
"""Maximum number of own marks that are stored, the newest."""

ROW: Final = struct.Struct("<QQQQQQIIQ")
OPEN: Final = struct.Struct("<QQQQQQ")
PAYLOAD: Final = struct.Struct("<16sQ28sIQ")


class Word(IntEnum):
    """Index of each header word. The writer owns those above TAIL, the reader the rest."""

    MAGIC = 0
    ROWS = 1
    CELLS = 2
    OPEN = 3
    CHUNKS = 4
    PID = 5
    STATE = 6
    """One of State."""
    HEAD = 7
    """Last slot that was drawn, never 0 once STATE is CLOSED."""
    STEP = 8
    """The user's number of the step that started last (signed)."""
    STEP_TIME = 9
    """When it started, monotonic ns; 0 before the first step."""
    LISTENS = 10
    """1: the process checks CONTROL before each step."""
    TAKEN = 11
    """The request that it accepted last."""
    ANSWERED = 12
    """The request whose outcome is in ANSWER."""
    ANSWER = 13
    """Outcome of the request (see ``control``)."""
    END_TIME = 14
    """When the run ended, monotonic ns: its own row may find no room."""
    FAILED = 15
    """1: the run ended with an exception."""
    LOST_RING_FULL = 16
    """Section rows for which the ring had no room."""
    LOST_PAYLOADS = 17
    """Attributes dropped from rows that were recorded."""
    LOST_OPEN = 18
    """Sections that found the open table full: recorded, but not seen while open."""
    LOST_ENTRIES = 19
    """Names recorded as ``other``."""
    LOST_CELLS = 20
    """Counters and aggregates for which no cell was left."""
    LOST_VALUES = 21
    """``log()`` values for which the ring had no room."""
    INTERNAL_ERRORS = 22
    """Exceptions inside the recorder that were kept from the program."""
    LOST_FRAME = 23
    """Begin, cancel, foreign and mark rows for which the ring had no room: they are no items."""
    CALLBACK_ERRORS = 24
    """Exceptions of the program's callbacks: faults of the program."""
    REDACTED = 25
    """Values that were redacted because they look like secrets."""
    META_CHECK = 26
    """CRC-32 of the metadata: these determine the folder that a reader writes to."""
    WATCH_TIME = 27
    """Nanoseconds spent on watching an untouched loop, without the usual cost of a section."""
    TAIL = 32
    """All slots below it may be written again: next slot to free."""
    DURABLE = 33
    """Last slot that the agent has written to its outbox."""
    STORED = 34
    """Last slot whose effect is in the run folder's tables."""
    BEAT = 35
    """Last sign of life of the agent, monotonic ns."""
    AGENT_PID = 36
    CONTROL = 37
    """Request of a command to the process (see ``control``)."""
    TABLES_ASKED = 38
    """When the agent was last requested to write the tables immediately, monotonic ns."""
    TABLES_UNTIL = 39
    """Time until which ended sections are in the run folder's tables, monotonic ns; 0: none are."""


class State(IntEnum):
    """State of the owning process's run, in the header word STATE."""

    RUNNING = 1
    CLOSED = 2


class Kind(IntEnum):
    """Kind of a row: its low four flag bits."""

    SECTION = 1
    BEGIN = 2
    CANCEL = 3
    VALUE = 4
    FOREIGN = 5
    PAYLOAD = 6
    MARK = 7


class HistogramCell(IntEnum):
    """Kind of a histogram's cell; cells of buckets are numbered from BUCKETS_AT."""

    HEAD = 1
    EXEMPLAR = 2


class Flag(IntFlag):
    """Flag bits of a row in addition to its kind."""

    ERROR = 1 << 4
    HAS_PAYLOAD = 1 << 5
    PROFILED = 1 << 7
    """Of a step: a profiler window was open in it."""
    PAUSE = 1 << 8
    """Of a section that stopped its thread anywhere: a reader determines parent and root."""
    MEASURED = 1 << 9
    """Its payload contains its resource usage."""
    ON_DEVICE = 1 << 10
    """A later payload of its own contains its device times."""


PART_SHIFT: Final = 8
PARTS_SHIFT: Final = 20


class Shape:
    """Byte offsets and counts of one journal's parts, derived from its number of rows."""

    __slots__ = (
        "cells",
        "cells_at",
        "chunks",
        "entries_at",
        "open",
        "ring_at",
        "rows",
        "size",
        "table_at",
    )

    def __init__(self, rows: int, cells: int, open_sections: int, chunks: int) -> None:
        self.rows, self.cells, self.open, self.chunks = rows, cells, open_sections, chunks
        self.cells_at = HEADER_BYTES
        self.table_at = self.cells_at + cells * CELL_BYTES
        # Rows and chunks start on a 64-byte line, so that none straddles a page.
        self.entries_at = -(-(self.table_at + open_sections * OPEN_BYTES) // 64) * 64
        self.ring_at = self.entries_at + chunks * CHUNK_BYTES
        self.size = self.ring_at + rows * ROW_BYTES

    @classmethod
    def of_rows(cls, rows: int) -> Shape:
        """Return the shape of a journal of ``rows`` rows, a power of two, which scale all parts."""
        return cls(rows, max(256, rows >> 4), max(256, rows >> 7), max(512, rows >> 4))

    @classmethod
    def of_size(cls, size: int) -> Shape | None:
        """Return the shape of a journal of ``size`` bytes; None: no journal has that size.

        So a reader need not trust words that may have been overwritten.
        """
        shape = cls.of_rows(1)
        while shape.size < size:
            shape = cls.of_rows(shape.rows << 1)
        return shape if shape.size == size else None


def stores_in_order() -> bool:
    """Return whether the processor shows a row's last word after the words in front of it."""
    import platform  # not in the training process

    return platform.machine() in ("x86_64", "AMD64", "i686")


def is_closed(words: memoryview) -> bool:
    """Return whether a header marks all rows as written, which requires their number, too."""
    return bool(words[Word.STATE] == State.CLOSED and words[Word.HEAD])


def signed(word: int) -> int:
    """Return the signed value of a word of 64 bits."""
    return word - (1 << 64) if word >> 63 else word
