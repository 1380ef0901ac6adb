"""Cells of counters, gauges, histograms and aggregated sections in shared memory.

Each value in a cell is updated by a single store, so that sums are exact after a SIGKILL. An
aggregated section has one cell per thread; the cells of an ended thread are reused by a later
thread. A series of a counter, gauge or histogram has one cell for all threads, because its update
never releases the GIL.

A histogram has the buckets of OpenTelemetry's exponential histogram at a fixed scale. A cell
contains six buckets and is allocated for the first value in these, so that the range of values need
not be known. A histogram's exemplar is a value from the last section whose trace is always sampled:
the first value that was recorded in that section.
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
    MAX_LABEL_SETS,
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
"""Factor of the bucket key: ``log2(value) * FACTOR // 1`` is the float -(bucket index + 1).

The negative sign assigns a value on a bucket's upper bound to that bucket.
"""


def content_of(kind: str, name: str, unit: str, labels: Labels = ()) -> Content:
    """Return the content with which a series of a metric is registered in the journal."""
    return ("cell", kind, name, unit, labels)


class _OfThread(dict[Key, int]):
    """One thread's cells: index of the first word by key; released when the thread ends."""

    __slots__ = ("_reusable",)

    def __init__(self, waiting: dict[Key, list[int]]) -> None:
        super().__init__()
        self._reusable = waiting

    def _release(self) -> None:
        for key, word in self.items():
            self._reusable.setdefault(key, []).append(word)

    __del__ = raises_afterwards(_release)


class ThreadCells(threading.local):
    """Cells of the calling thread."""

    def __init__(self, waiting: dict[Key, list[int]]) -> None:
        self.cells = _OfThread(waiting)


class Cells:
    """Allocator of the cells of one journal."""

    def __init__(self, recording: Recording) -> None:
        self._recording, self._journal = recording, recording.journal
        self._reusable: dict[Key, list[int]] = {}
        self.local = ThreadCells(self._reusable)
        self._shared: dict[Content, int] = {}
        self._numbers: dict[Content, int] = {}
        self._labelled = self._taken = 0
        self.aggregates: dict[int, Content] = {}
        """Contents of the cells of aggregated sections, by index of the first word."""

    # -- counters, gauges, histograms ------------------------------------------------------------

    def add(self, name: str, unit: str, value: float, labels: Labels = ()) -> None:
        """Add ``value`` to a counter of this package; the value is lost if no cell is free."""
        word = self.shared(content_of("counter", name, unit, labels))
        if word:
            # Nothing between load and store releases the GIL or runs a signal handler.
            self._journal.floats[word + 1] += value

    def set(self, name: str, unit: str, value: float, labels: Labels = ()) -> None:
        """Set a gauge of this package to ``value``; the value is lost if no cell is free."""
        word = self.shared(content_of("gauge", name, unit, labels))
        if word:
            self._journal.floats[word + 1] = value

    def shared(self, content: Content) -> int:
        """Return the index of the first word of a series' cell, which all threads share.

        The cell is allocated on first use; the result is 0 if no cell is free.
        """
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
        """Return the index of the first word of this thread's cell for ``key``.

        A new cell is registered with ``content``; the result is 0 if no cell is free.
        """
        if self._recording.is_retired:
            return 0
        cells = self.local.cells
        word = cells.get(key)
        if word is None:
            # Reuse the cell of an ended thread: a new thread pool in each epoch must not use up the
            # cells.
            waiting = self._reusable.get(key)
            word = waiting.pop() if waiting else self.take(content)
            cells[key] = word
        return word

    def take(self, content: Content) -> int:
        """Allocate a cell; return the index of its first word, or 0 (and warn) if none is free."""
        self._taken += 1
        word = self._journal.cell(self._entry(content))
        if not word:
            warn_once(_NO_CELL)
        elif content[1] == "aggregate":
            self.aggregates[word] = content
        return word

    def added_up(self) -> dict[int, tuple[int, int, int]]:
        """Return count, sum and covered time of aggregated sections, by each cell's first word."""
        words = self._journal.words
        return {w: (words[w + 1], words[w + 2], words[w + 5]) for w in list(self.aggregates)}

    def counted(self) -> dict[str, float]:
        """Return the totals of the user's own counters over all label sets, by name."""
        found: dict[str, float] = {}
        for content, word in list(self._shared.items()):
            if word and content[1] == "counter" and content[2].startswith(_OWN):
                name = content[2][len(_OWN) :]
                found[name] = found.get(name, 0.0) + self._journal.floats[word + 1]
        return found

    def _entry(self, content: Content) -> int:
        """Return the entry number of a content; readers add up the cells with the same entry."""
        number = self._numbers.get(content)
        if number is None:
            number = self._numbers.setdefault(content, self._journal.entry(content))
        return number

    def within_limits(self, content: Content) -> Content:
        """Return ``content``; beyond the limit of label sets, with ``OVERFLOW`` as its labels."""
        if not content[4] or content in self._shared:
            return content
        cells = self._journal.shape.cells
        if self._labelled < MAX_LABEL_SETS and self._taken < cells - cells // 4:
            self._labelled += 1
            return content
        warn_once(_TOO_MANY, MAX_LABEL_SETS, names.OVERFLOW)
        return (*content[:4], OVERFLOW)


class NoRoomError(Exception):
    """Raised if no cell is free for a bucket; the loss has been counted."""


class HistogramCells(dict[float, int]):
    """Index of the word of each bucket of a histogram, by bucket key."""

    __slots__ = ("_cells", "_content", "_exemplar", "_parents", "_recording")

    def __init__(
        self, recording: Recording, parents: Parents, cells: Cells, head: int, content: Content
    ) -> None:
        """Initialise the head cell at word ``head``, which contains sum, zeros, min and max."""
        super().__init__()
        self._recording, self._parents = recording, parents
        self._cells, self._content = cells, content
        self._exemplar = 0
        journal = recording.journal
        journal.floats[head + 3], journal.floats[head + 4] = inf, -inf
        journal.words[head + 7] = HistogramCell.HEAD

    def __missing__(self, key: float) -> int:
        """Allocate the cell of a bucket, and return the bucket's word.

        Raises:
            NoRoomError: no cell is free.
        """
        block = (int(-key) - 1) // BUCKETS_IN_CELL
        word = self._cells.take(self._content)
        if not word:
            raise NoRoomError
        self._recording.journal.words[word + 7] = BUCKETS_AT + block
        first = -float(block * BUCKETS_IN_CELL + 1)
        # A signal handler or another thread may have allocated a cell for the same buckets in the
        # meantime. Use the earlier cell: a reader uses the count of one cell, not the sum of two.
        for i in range(BUCKETS_IN_CELL):
            self.setdefault(first - i, word + 1 + i)
        return self[key]

    def note(self, section: Any, value: float) -> None:
        """Make ``value`` the exemplar if ``section`` is a section whose trace is always sampled."""
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
        # Checksum by which a reader detects a partial update, concurrent or of a killed process.
        words[at + 5] = words[at + 1] ^ now ^ span ^ root
