"""Cells of counters, gauges, histograms and aggregated sections in shared memory.

A cell is updated by one store at a time, so that sums are exact after a SIGKILL. An aggregated
section has one cell per thread; when a thread ends, its cells wait for the next thread. A series of
a counter, gauge or histogram has one cell for all threads: nothing in between releases the GIL.

A histogram's buckets are those of OpenTelemetry's exponential histogram at a fixed scale. A cell
for six buckets is allocated when a value first falls into one of them, so that no range has to be
chosen. The exemplar is the histogram's last value from a section whose trace is always sampled.
Each section provides at most one exemplar, its first value.
"""

from __future__ import annotations

import threading
import time
from math import inf, nan
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names
from otel_mlperf.journal.layout import (
    BUCKETS_AT,
    BUCKETS_IN_CELL,
    HISTOGRAM_SCALE,
    MOST_LABEL_SETS,
    HistogramCell,
)
from otel_mlperf.recorder.core.faults import warn_once
from otel_mlperf.recorder.core.interrupts import raises_afterwards
from otel_mlperf.recorder.sections.section_context import (
    PARENTS,
    SectionContext,
    context_above,
)

if TYPE_CHECKING:
    from otel_mlperf.recorder.core.recording import Recording
    from otel_mlperf.recorder.sections.parents import Parents

Key = tuple[Any, ...]
Content = tuple[Any, ...]
Labels = tuple[tuple[str, str], ...]
_OWN: Final = names.user_metric("")
OVERFLOW: Final[Labels] = ((names.OVERFLOW, "true"),)
_TOO_MANY = (
    "more than %d label sets, or more than fit into the journal: further label sets of a name are "
    "summed in one series labelled %s=true; use labels with few values"
)
_NO_CELL = (
    "the journal has no room for more series: further counters and aggregated sections are lost"
)

FACTOR = -float(1 << HISTOGRAM_SCALE)
"""``log2(value) * FACTOR // 1`` is the key of a value's bucket: the float -(index + 1).

So a value on a bucket's upper bound belongs to it, and the key costs two operations on floats.
"""


def content_of(kind: str, name: str, unit: str, labels: Labels = ()) -> Content:
    """Return the content that a series is registered with; ``name`` is the metric's."""
    return ("cell", kind, name, unit, labels)


class _OfThread(dict[Key, int]):
    """One thread's cells: key to the index of the first word; released when the thread ends."""

    __slots__ = ("_waiting",)

    def __init__(self, waiting: dict[Key, list[int]]) -> None:
        super().__init__()
        self._waiting = waiting

    def _give_back(self) -> None:
        for key, word in self.items():
            self._waiting.setdefault(key, []).append(word)

    __del__ = raises_afterwards(_give_back)


class ThreadCells(threading.local):
    """The cells of the calling thread."""

    def __init__(self, waiting: dict[Key, list[int]]) -> None:
        self.cells = _OfThread(waiting)


class Cells:
    """The cells of one journal."""

    def __init__(self, recording: Recording) -> None:
        self._recording, self._journal = recording, recording.journal
        self._waiting: dict[Key, list[int]] = {}
        self.local = ThreadCells(self._waiting)
        self._shared: dict[Content, int] = {}
        self._numbers: dict[Content, int] = {}
        self._labelled = self._taken = 0
        self.aggregates: dict[int, Content] = {}
        """Cells of aggregated sections, by their first word."""

    # -- counters, gauges, histograms ------------------------------------------------------------

    def add(self, name: str, unit: str, value: float, labels: Labels = ()) -> None:
        """Add to a counter of the package's own."""
        word = self.shared(content_of("counter", name, unit, labels))
        if word:
            # Nothing between load and store releases the GIL or runs a signal handler.
            self._journal.floats[word + 1] += value

    def set(self, name: str, unit: str, value: float, labels: Labels = ()) -> None:
        """Set a gauge of the package's own: the last value wins."""
        word = self.shared(content_of("gauge", name, unit, labels))
        if word:
            self._journal.floats[word + 1] = value

    def shared(self, content: Content) -> int:
        """Return the cell of a series, the same for all threads; 0 if none is left."""
        if self._recording.is_retired:
            return 0
        word = self._shared.get(content)
        if word is None:
            word = self.take(content)
            if word and content[1] == "gauge":
                self._journal.floats[word + 1] = nan  # not set yet
            word = self._shared.setdefault(content, word)
        return word

    # -- cells -----------------------------------------------------------------------------------

    def word(self, key: Key, content: Content) -> int:
        """Return this thread's cell for ``key``; 0 if none is left."""
        if self._recording.is_retired:
            return 0
        cells = self.local.cells
        word = cells.get(key)
        if word is None:
            # The cell of an ended thread: a new pool in each epoch must not exhaust the cells.
            waiting = self._waiting.get(key)
            word = waiting.pop() if waiting else self.take(content)
            cells[key] = word
        return word

    def take(self, content: Content) -> int:
        """Allocate one more cell; 0 if none is left, which is counted."""
        self._taken += 1
        word = self._journal.cell(self._entry(content))
        if not word:
            warn_once(_NO_CELL)
        elif content[1] == "aggregate":
            self.aggregates[word] = content
        return word

    def added_up(self) -> dict[int, tuple[int, int, int]]:
        """Return count, sum and covered time of aggregated sections so far, by first word."""
        words = self._journal.words
        return {w: (words[w + 1], words[w + 2], words[w + 5]) for w in list(self.aggregates)}

    def counted(self) -> dict[str, float]:
        """Return the totals of the program's own counters, by name, over all label sets."""
        found: dict[str, float] = {}
        for content, word in list(self._shared.items()):
            if word and content[1] == "counter" and content[2].startswith(_OWN):
                name = content[2][len(_OWN) :]
                found[name] = found.get(name, 0.0) + self._journal.floats[word + 1]
        return found

    def _entry(self, content: Content) -> int:
        """Return one entry for all cells of a content: a reader adds up cells of one number."""
        number = self._numbers.get(content)
        if number is None:
            number = self._numbers.setdefault(content, self._journal.entry(content))
        return number

    def within_limits(self, content: Content) -> Content:
        """Return the content, with the overflow label if there are too many label sets."""
        if not content[4] or content in self._shared:
            return content
        cells = self._journal.shape.cells
        if self._labelled < MOST_LABEL_SETS and self._taken < cells - cells // 4:
            self._labelled += 1
            return content
        warn_once(_TOO_MANY, MOST_LABEL_SETS, names.OVERFLOW)
        return (*content[:4], OVERFLOW)


class NoRoomError(Exception):
    """Raised if no cell is left for a bucket; the journal has counted that."""


class HistogramCells(dict[float, int]):
    """Words of a histogram's buckets, by key."""

    __slots__ = ("_cells", "_content", "_exemplar", "_parents", "_recording")

    def __init__(
        self, recording: Recording, parents: Parents, cells: Cells, head: int, content: Content
    ) -> None:
        """Initialise the head cell; ``head`` is the first word with sum, zeros, min and max."""
        super().__init__()
        self._recording, self._parents = recording, parents
        self._cells, self._content = cells, content
        self._exemplar = 0
        journal = recording.journal
        journal.floats[head + 3], journal.floats[head + 4] = inf, -inf
        journal.words[head + 7] = HistogramCell.HEAD

    def __missing__(self, key: float) -> int:
        """Allocate the cell of a bucket.

        Raises:
            NoRoomError: none is left.
        """
        block = (int(-key) - 1) // BUCKETS_IN_CELL
        word = self._cells.take(self._content)
        if not word:
            raise NoRoomError
        self._recording.journal.words[word + 7] = BUCKETS_AT + block
        first = -float(block * BUCKETS_IN_CELL + 1)
        # A signal handler or another thread may have allocated a cell in the meantime and counted
        # in it. That cell is kept: a reader uses one cell's count of a bucket, not the sum of two.
        for i in range(BUCKETS_IN_CELL):
            self.setdefault(first - i, word + 1 + i)
        return self[key]

    def note(self, section: Any, value: float) -> None:
        """Make the value the exemplar of this histogram if its trace is always sampled."""
        recording = self._recording
        while isinstance(section, SectionContext) and section.adds_up:
            section = context_above(section)
        if not isinstance(section, SectionContext):
            return
        if section.recording is not recording or not section.at:
            return
        root = PARENTS.unpack(section.chunk)[1]
        step = self._parents.steps.get(root)
        if step is not None:
            config = recording.config
            if step.n >= config.trace_first and step.n % config.trace_every:
                return
        elif root != recording.meta.run_span and not self._parents.is_foreign(root):
            return
        self._store(value, section.sid, root)

    def _store(self, value: float, span: int, root: int) -> None:
        journal, at = self._recording.journal, self._exemplar
        words = journal.words
        if not at:
            at = self._exemplar = self._cells.take(self._content)
            if not at:
                return
            words[at + 7] = HistogramCell.EXEMPLAR
        now = time.monotonic_ns()
        journal.floats[at + 1] = value
        words[at + 2], words[at + 3], words[at + 4] = now, span, root
        # Checksum: a reader in between, or after a kill, detects that values do not belong
        # together.
        words[at + 5] = words[at + 1] ^ now ^ span ^ root
