"""In which cells does a histogram count, and which span stands for its last value?

Buckets are those of OpenTelemetry's exponential histogram at a fixed scale; a cell for six of them
is taken when a value first falls into one, so that no range has to be chosen. The span is that of a
section whose trace is always kept; there is one for each section at most, its first value.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from otel_mlperf.journal.layout import BUCKETS_AT, BUCKETS_IN_CELL, HISTOGRAM_SCALE, HistogramCell
from otel_mlperf.recorder.sections.section_context import PARENTS, SectionContext

if TYPE_CHECKING:
    from otel_mlperf.recorder.core.recording import Recording
    from otel_mlperf.recorder.instruments.cells import Cells, Content
    from otel_mlperf.recorder.sections.parents import Parents

FACTOR = -float(1 << HISTOGRAM_SCALE)
"""``log2(value) * FACTOR // 1`` is the key of a value's bucket: the float -(index + 1).

So a value on a bucket's upper bound belongs to it, and the key costs two operations on floats.
"""


class NoRoomError(Exception):
    """No cell is left for a bucket; the journal has counted that."""


class HistogramCells(dict[float, int]):
    """Word of each bucket by key."""

    __slots__ = ("_cells", "_content", "_exemplar", "_parents", "_recording")

    def __init__(
        self, recording: Recording, parents: Parents, cells: Cells, head: int, content: Content
    ) -> None:
        """``head`` is the first word of the cell with sum, zeros, least and most."""
        super().__init__()
        self._recording, self._parents = recording, parents
        self._cells, self._content = cells, content
        self._exemplar = 0
        journal = recording.journal
        journal.floats[head + 3], journal.floats[head + 4] = math.inf, -math.inf
        journal.words[head + 7] = HistogramCell.HEAD

    def __missing__(self, key: float) -> int:
        """Takes the cell of a bucket.

        Raises:
            NoRoomError: none is left.
        """
        block, place = divmod(int(-key) - 1, BUCKETS_IN_CELL)
        word = self._cells.take(self._content)
        if not word:
            raise NoRoomError
        self._recording.journal.words[word + 7] = BUCKETS_AT + block
        first = -float(block * BUCKETS_IN_CELL + 1)
        self.update((first - i, word + 1 + i) for i in range(BUCKETS_IN_CELL))
        return word + 1 + place

    def note(self, section: Any, value: float) -> None:
        """Makes the value the example of this histogram if its trace is always kept."""
        recording = self._recording
        if not isinstance(section, SectionContext):
            return
        if section.recording is not recording or not section.at:
            return
        root = PARENTS.unpack(section.chunk)[1]
        step = self._parents.steps.get(root)
        if step is not None:
            config = recording.config
            if step.n >= config.first_steps and step.n % config.keep_every:
                return
        elif root != recording.meta.run_span:
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
        # A reader in between, or a kill, sees that these do not belong together.
        words[at + 5] = words[at + 1] ^ now ^ span ^ root
