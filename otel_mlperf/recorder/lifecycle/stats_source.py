"""Snapshot of the statistics of ended sections that this process knows.

It combines what the agent has added up and published in a file next to the journal with the rows
written since, which the ring still contains. Without an agent the ring contains all rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from otel_mlperf.journal.layout import ROW_BYTES, Word
from otel_mlperf.journal.section_sums import read_sums
from otel_mlperf.recorder.core.faults import internal_error

if TYPE_CHECKING:
    from otel_mlperf.journal.journal_writer import Journal
    from otel_mlperf.journal.section_sums import Published
    from otel_mlperf.recorder.instruments.cells import Content
    from otel_mlperf.recorder.lifecycle.recorder import Recorder

_TRIES = 3


class AddedUp(NamedTuple):
    """Sums of one cell of an aggregated section."""

    content: Content
    calls: int
    total_ns: int
    covered_ns: int
    least_ns: int
    most_ns: int


class Known(NamedTuple):
    """A snapshot of all known statistics."""

    published: Published | None
    rows: bytes
    """Rows that the published sums do not contain, in order."""
    first: int
    """No row from this slot on was overwritten before it was copied."""
    cells: dict[int, AddedUp]
    """Cells by their first word."""
    counted: dict[str, float]
    """Totals of the program's own counters."""
    dropped: int
    """Sections for which the journal had no room."""
    now_ns: int


def copy_known(recorder: Recorder, last: int, now_ns: int) -> Known:
    """Return a snapshot of everything up to slot ``last``."""
    journal = recorder.journal
    for _ in range(_TRIES):
        published = read_sums(journal.path)
        begin = 1 if published is None else min(published.next, last + 1)
        rows, first = _rows(journal, begin, last + 1)
        # Overwritten in the meantime: then a later file contains the rows.
        if first == begin:
            break
    if published is not None:
        rows = _late(journal, published.holes) + rows
    dropped = journal.said[Word.LOST_RING_FULL]
    counted = recorder.cells.counted()
    return Known(published, rows, first, _cells(recorder), counted, dropped, now_ns)


def copy_at_end(recorder: Recorder) -> Known | None:
    """Return a snapshot when the journal is about to be closed; None: it failed."""
    try:
        # Not a query of the program: the mark of its last query stays.
        end = recorder.marks.set_own()
        return copy_known(recorder, end.slot, end.time_ns)
    except Exception as error:  # noqa: BLE001 - the run ends all the same
        internal_error(error)
        return None


def _rows(journal: Journal, begin: int, end: int) -> tuple[bytes, int]:
    """Return the rows from ``begin`` to before ``end``, and the first slot not overwritten."""
    ring, mask = journal.shape.rows, journal.shape.rows - 1
    begin = max(begin, end - ring)
    at = begin & mask
    past = at + end - begin
    text = _slice(journal, at, min(past, ring)) + _slice(journal, 0, max(past - ring, 0))
    numbers = memoryview(text).cast("Q")[7::8].tolist()
    if numbers == list(range(begin, end)):
        return text, begin
    slots = list(enumerate(numbers, begin))
    # A lower number is of the previous round: the slot was drawn, but its row is not stored yet.
    first = max((slot + 1 for slot, number in slots if number > slot), default=begin)
    there = [slot - begin for slot, number in slots if slot == number]
    return b"".join(text[i * ROW_BYTES : (i + 1) * ROW_BYTES] for i in there), first


def _slice(journal: Journal, begin: int, end: int) -> bytes:
    at = journal.shape.ring_at
    return bytes(journal.buffer[at + begin * ROW_BYTES : at + end * ROW_BYTES])


def _late(journal: Journal, holes: list[int]) -> bytes:
    """Return rows that were being written when the agent passed, and are complete by now."""
    return b"".join(_rows(journal, hole, hole + 1)[0] for hole in holes)


def _cells(recorder: Recorder) -> dict[int, AddedUp]:
    words, found = recorder.journal.words, {}
    for at, content in list(recorder.cells.aggregates.items()):
        _, calls, total, least, most, covered, least_before, most_before = words[at : at + 8]
        if calls:
            least = min(least, least_before or least)
            found[at] = AddedUp(content, calls, total, covered, least, max(most, most_before))
    return found
