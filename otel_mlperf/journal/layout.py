"""Layout of a journal file, shared by writer and readers.

A journal is one file per process in shared memory, little-endian, in five parts::

    header    4,096 bytes   512 words of 8 bytes; metadata (MessagePack) starts at word 128
    cells     64 bytes each counters, gauges, histograms, aggregated sections
    table     48 bytes each sections that are currently open
    entries   64 bytes each chunks of definitions (names, tracks, cells) by number; append-only
    ring      64 bytes each rows (events); new rows overwrite the oldest

**Rows** are published by their last word: a row is valid once ``seq`` equals its slot number, a
counter that starts at 1. Slot s is stored at index ``s & (rows - 1)``. The fields by kind:

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

Times are in nanoseconds of CLOCK_MONOTONIC. ``root`` identifies the trace: the span id of a step or
of the run, or a key that a FOREIGN row has assigned to a trace of another process or library. A
step or run writes BEGIN before any row inside it. *number* is the user's step number; *n* counts
steps from 0 in this process and phase (both signed). ``span`` of a VALUE row is the section in
which ``log()`` was called. A MARK is a start point for queries of section statistics; a later mark
with the same number replaces it. A mark of the user has a name and a step number; all other
marks have entry 0.

**Payloads** are MessagePack maps of data that does not fit into a row (attributes, an exception). A
payload is written as PAYLOAD rows *before* its row, which then has the flag HAS_PAYLOAD. PAYLOAD
rows have the span id of their row, or the root key of a FOREIGN row. A payload with key ``d`` (see
``contents``) belongs to no row. The encoded text is a 4-byte length and the map, cut into parts;
part number and part count are in the flags.

**Entries** are stored in chunks of the same form as PAYLOAD rows: ``span`` is the entry's number,
``seq`` the chunk's number from 1, which is also its index. The MessagePack content is an array
whose first item is the kind::

    ["section", name, category, phase, {constant attributes}]
    ["track", ident, native thread id, thread name, is_task]
    ["cell", "counter" | "updowncounter" | "gauge" | "histogram", metric name, unit,
     [[label, value], ...]]
    ["cell", "aggregate", name, category, enclosing name, phase, section entry, section path,
     aggregates inside, of step?, on another track?, since]

**Cells** consist of eight words. The first is the entry number, stored when the cell is allocated.
The other words depend on the kind::

    counter, gauge, …    value (float64; nan: a gauge that was never set)
    aggregate            count, sum, min, max, covered, min and max before (ns)
    histogram, HEAD      sum (float64), zeros, min, max (both float64; inf and -inf at first), -, -
    histogram, EXEMPLAR  value (float64), monotonic ns, span, root, the four xor-ed, -
    histogram, buckets   counts of six consecutive buckets

The last word of a histogram's cell is its kind (HistogramCell), or BUCKETS_AT + b for the cell that
starts with bucket 6 b. Bucket i counts values above base**i and up to base**(i + 1), with
base = 2**2**-HISTOGRAM_SCALE. The count of a histogram is the sum of all buckets and of zeros.

An aggregate has one cell for each thread that added to it: a reader sums the cells with the same
entry number. Its self time is *sum* minus *covered* (the time covered by sections inside). The self
time is subtracted from the section with the given section entry (0: from none); outside steps, from
the section with the given path (names below the run). *since* is a monotonic time before which the
aggregate was not called. The payload of a step contains, as ``g``, the step's share of each
aggregate: entry, ns after the step's start, count, sum, covered, min and max. Min and max in the
cell then restart; the previous values are stored as *min and max before*.
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
"""Maximum number of entries. Later names are recorded as OTHER."""
OTHER: Final = 1
"""Entry number used for every name above the limit."""
PAYLOAD_BYTES: Final = 44
MAX_PARTS: Final = 4095
MAX_LABEL_SETS: Final = 2000
"""Maximum number of labelled series in a journal. Values of further series are added to one
overflow series per name."""
HISTOGRAM_SCALE: Final = 3
"""Scale of exponential histograms: eight buckets per factor of two, i.e. 4.5 % precision."""
BUCKETS_IN_CELL: Final = 6
BUCKETS_AT: Final = 1 << 32

START: Final = 0
EPOCH: Final = 1
ASKED: Final = (2, 3)
"""Numbers of the marks that the package sets: start of the run, start of the epoch, and queries.
Queries alternate between two numbers, because a query still needs the mark of the previous
query."""
FIRST_PROGRAM_MARK: Final = 4
"""First number for marks that the user's program sets."""
MAX_PROGRAM_MARKS: Final = 16
"""Maximum number of the user's marks for which sums are stored (the newest ones)."""

ROW: Final = struct.Struct("<QQQQQQIIQ")
OPEN: Final = struct.Struct("<QQQQQQ")
PAYLOAD: Final = struct.Struct("<16sQ28sIQ")


class Word(IntEnum):
    """Index of each header word.

    The process writes words before TAIL, the agent TAIL and later words. A command writes CONTROL
    and TABLES_REQUESTED.
    """

    MAGIC = 0
    ROWS = 1
    CELLS = 2
    OPEN = 3
    CHUNKS = 4
    PID = 5
    STATE = 6
    """One of State."""
    HEAD = 7
    """Last slot that was allocated. Stored, and never 0, if STATE is CLOSED."""
    STEP = 8
    """The user's number of the step that was started last (signed)."""
    STEP_TIME = 9
    """Start time of that step, monotonic ns; 0 before the first step."""
    LISTENS = 10
    """1: the process checks CONTROL before each step."""
    TAKEN = 11
    """The CONTROL request that the process accepted last."""
    ANSWERED = 12
    """The CONTROL request whose outcome is in ANSWER."""
    ANSWER = 13
    """Outcome of the request (see ``profiler_windows``)."""
    END_TIME = 14
    """End time of the run, monotonic ns, because there may be no room for the run's own row."""
    FAILED = 15
    """1: the run ended with an exception."""
    LOST_RING_FULL = 16
    """Number of section rows dropped because the ring was full."""
    LOST_PAYLOADS = 17
    """Number of payloads dropped from recorded rows."""
    LOST_OPEN = 18
    """Number of sections recorded without being visible while open, because the open table was
    full."""
    LOST_ENTRIES = 19
    """Number of names recorded as ``other``."""
    LOST_CELLS = 20
    """Number of counters, aggregates and so on for which no cell was left."""
    LOST_VALUES = 21
    """Number of ``log()`` values dropped because the ring was full."""
    INTERNAL_ERRORS = 22
    """Number of exceptions in the recorder, which are not raised in the user's program."""
    LOST_FRAME = 23
    """Number of BEGIN, CANCEL, FOREIGN and MARK rows dropped because the ring was full."""
    CALLBACK_ERRORS = 24
    """Number of exceptions raised by the user's callbacks."""
    REDACTED = 25
    """Number of values redacted because they look like secrets."""
    META_CHECK = 26
    """CRC-32 of the metadata, which determine the folder to which the agent writes."""
    WATCH_TIME = 27
    """Time in ns spent on detecting steps of an unchanged loop, in addition to the cost of
    sections."""
    TAIL = 32
    """First slot that is not free: all slots below it may be written again."""
    DURABLE = 33
    """Last slot whose row the agent has logged durably."""
    STORED = 34
    """Last slot whose row is in the run folder's tables."""
    BEAT = 35
    """Last sign of life of the agent, monotonic ns."""
    AGENT_PID = 36
    CONTROL = 37
    """Request of a command to the process (see ``profiler_windows``)."""
    TABLES_REQUESTED = 38
    """Time of the last request to write the tables immediately, monotonic ns."""
    TABLES_UNTIL = 39
    """The tables contain sections that ended before this time (monotonic ns); 0: none."""


class State(IntEnum):
    """State of the process's run, as stored in the header word STATE."""

    RUNNING = 1
    CLOSED = 2


class Kind(IntEnum):
    """Kind of a row, stored in the low four flag bits."""

    SECTION = 1
    BEGIN = 2
    CANCEL = 3
    VALUE = 4
    FOREIGN = 5
    PAYLOAD = 6
    MARK = 7


class HistogramCell(IntEnum):
    """Kind of a histogram's cell. Cells of buckets have numbers around BUCKETS_AT instead."""

    HEAD = 1
    EXEMPLAR = 2


class Flag(IntFlag):
    """Flag bits of a row, in addition to its kind."""

    ERROR = 1 << 4
    HAS_PAYLOAD = 1 << 5
    PROFILED = 1 << 7
    """A profiler window was open during the section."""
    PAUSE = 1 << 8
    """The row is a garbage collection, for which the reader determines parent and root."""
    MEASURED = 1 << 9
    """The payload contains the section's resource use."""
    ON_DEVICE = 1 << 10
    """A separate later payload contains the section's device times."""


PART_SHIFT: Final = 8
PARTS_SHIFT: Final = 20


class Shape:
    """Byte offsets and sizes of the parts of a journal, derived from its number of rows."""

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
        # Align rows and chunks to 64 bytes, so that none crosses a cache line or page.
        self.entries_at = -(-(self.table_at + open_sections * OPEN_BYTES) // 64) * 64
        self.ring_at = self.entries_at + chunks * CHUNK_BYTES
        self.size = self.ring_at + rows * ROW_BYTES

    @classmethod
    def of_rows(cls, rows: int) -> Shape:
        """Return the shape of a journal with ``rows`` rows (a power of two)."""
        return cls(rows, max(256, rows >> 4), max(256, rows >> 7), max(512, rows >> 4))

    @classmethod
    def of_size(cls, size: int) -> Shape | None:
        """Return the shape of a journal of ``size`` bytes; None if no journal has that size.

        Readers derive the shape from the size, because header words may have been overwritten.
        """
        shape = cls.of_rows(1)
        while shape.size < size:
            shape = cls.of_rows(shape.rows << 1)
        return shape if shape.size == size else None


def stores_in_order() -> bool:
    """Return whether the processor makes stores visible in program order (x86)."""
    import platform  # imported late: not needed in the training process

    return platform.machine() in ("x86_64", "AMD64", "i686")


def is_closed(words: memoryview) -> bool:
    """Return whether a header marks all rows as written: STATE is CLOSED and HEAD is set."""
    return bool(words[Word.STATE] == State.CLOSED and words[Word.HEAD])


def signed(word: int) -> int:
    """Return the signed value of an unsigned 64-bit word."""
    return word - (1 << 64) if word >> 63 else word
