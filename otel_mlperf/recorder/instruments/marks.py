"""Marks of the program: points in a run since which section statistics can be queried.

A mark is a row in the journal. Rows after it in the ring were written later, by any thread, so a
reader sums the rows from the mark to the end.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

from otel_mlperf.journal.layout import ASKED, EPOCH, FIRST_PROGRAM_MARK, START, Kind, Word

if TYPE_CHECKING:
    from otel_mlperf.journal.journal_writer import Journal
    from otel_mlperf.recorder.instruments.cells import Cells

_MASK = (1 << 64) - 1


class Mark:
    """Point in a run, for ``run.stats(since=mark)``."""

    __slots__ = ("added_up", "counted", "dropped", "journal", "number", "slot", "time_ns")

    def __init__(self, journal: Journal | None, number: int, slot: int, time_ns: int) -> None:
        self.journal, self.number, self.slot, self.time_ns = journal, number, slot, time_ns
        self.dropped = 0
        """Number of sections lost before the mark because the journal was full."""
        self.added_up: dict[int, tuple[int, int, int]] = {}
        """Count, sum and covered time of aggregated sections until the mark, by cell."""
        self.counted: dict[str, float] = {}
        """Totals of the program's own counters until the mark, by name."""


class Marks:
    """Marks of one journal: of the program, of epochs and of queries."""

    def __init__(self, journal: Journal, cells: Cells) -> None:
        self._journal, self._cells = journal, cells
        self._number = itertools.count(FIRST_PROGRAM_MARK).__next__
        self._asked = itertools.cycle(ASKED).__next__
        self.start = Mark(journal, START, 0, time.monotonic_ns())
        self.epoch = self.asked = self.start
        """``epoch``: mark of the open or last epoch; ``asked``: mark of the last query."""

    def set_own(self, entry: int = 0, step: int = 0) -> Mark:
        """Set a mark of the user's program.

        Args:
            entry: number of the mark's name; 0 if the mark is that of the run's end.
            step: number of the current step.
        """
        return self._set(self._number(), step & _MASK, entry)

    def begin_epoch(self) -> None:
        """Set the mark of an epoch that starts now."""
        self.epoch = self._set(EPOCH)

    def ask(self) -> tuple[Mark, Mark]:
        """Set the mark of a query; return this mark and that of the previous query."""
        before, self.asked = self.asked, self._set(self._asked())
        return self.asked, before

    def _set(self, number: int, step: int = 0, entry: int = 0) -> Mark:
        journal = self._journal
        now, slot = time.monotonic_ns(), journal.draw(Word.LOST_FRAME if entry else 0)
        journal.store(slot, now, 0, number, step, 0, 0, entry, Kind.MARK)
        # If the ring is full, all later rows are written behind the end of the lease.
        mark = Mark(journal, number, slot or journal.lease.end - 1, now)
        mark.dropped = journal.said[Word.LOST_RING_FULL]
        mark.added_up, mark.counted = self._cells.added_up(), self._cells.counted()
        return mark
