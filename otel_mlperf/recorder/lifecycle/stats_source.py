"""Snapshot of the data for section statistics: the agent's sums, later rows, and cells.

The agent publishes sums in a file next to the journal. The ring still contains the rows that were
written later. Without an agent, all rows are in the ring.
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
    """Snapshot of the data from which statistics are computed."""

    published: Published | None
    """The agent's sums; None if the agent has not published any."""
    rows: bytes
    """Rows that the published sums do not contain, in order."""
    first: int
    """Slot from which the rows are complete; earlier rows may have been overwritten."""
    cells: dict[int, AddedUp]
    """Sums of aggregated sections, by the index of the cell's first word."""
    counted: dict[str, float]
    """Totals of the program's counters, by name."""
    dropped: int
    """Number of sections lost because the journal was full."""
    now_ns: int


def copy_known(recorder: Recorder, last: int, now_ns: int) -> Known:
    """Return a snapshot, taken at ``now_ns``, of all data up to slot ``last``."""
    journal = recorder.journal
    for _ in range(_TRIES):
        published = read_sums(journal.path)
        begin = 1 if published is None else min(published.next, last + 1)
        rows, first = _rows(journal, begin, last + 1)
        # Otherwise rows were overwritten in the meantime: the agent's next file contains them.
        if first == begin:
            break
    if published is not None:
        rows = _late(journal, published.holes) + rows
    dropped = journal.said[Word.LOST_RING_FULL]
    counted = recorder.cells.counted()
    return Known(published, rows, first, _cells(recorder), counted, dropped, now_ns)


def copy_at_end(recorder: Recorder) -> Known | None:
    """Return a snapshot before the journal is closed; None if an internal error prevents it."""
    try:
        # ``set_own`` instead of ``ask``: the mark of the program's last query must not change.
        end = recorder.marks.set_own()
        return copy_known(recorder, end.slot, end.time_ns)
    except Exception as error:  # noqa: BLE001 - the run ends all the same
        internal_error(error)
        return None


def _rows(journal: Journal, begin: int, end: int) -> tuple[bytes, int]:
    """Return the rows from slot ``begin`` up to ``end``, and the first slot not overwritten."""
    ring, mask = journal.shape.rows, journal.shape.rows - 1
    begin = max(begin, end - ring)
    at = begin & mask
    past = at + end - begin
    text = _slice(journal, at, min(past, ring)) + _slice(journal, 0, max(past - ring, 0))
    numbers = memoryview(text).cast("Q")[7::8].tolist()
    if numbers == list(range(begin, end)):
        return text, begin
    slots = list(enumerate(numbers, begin))
    # A higher number: overwritten. A lower one: the slot was drawn, but its row is not stored yet.
    first = max((slot + 1 for slot, number in slots if number > slot), default=begin)
    complete = [slot - begin for slot, number in slots if slot == number]
    return b"".join(text[i * ROW_BYTES : (i + 1) * ROW_BYTES] for i in complete), first


def _slice(journal: Journal, begin: int, end: int) -> bytes:
    at = journal.shape.ring_at
    return bytes(journal.buffer[at + begin * ROW_BYTES : at + end * ROW_BYTES])


def _late(journal: Journal, holes: list[int]) -> bytes:
    """Return the now complete rows in ``holes``, the slots that the agent found incomplete."""
    return b"".join(_rows(journal, hole, hole + 1)[0] for hole in holes)


def _cells(recorder: Recorder) -> dict[int, AddedUp]:
    words, found = recorder.journal.words, {}
    for at, content in list(recorder.cells.aggregates.items()):
        _, calls, total, least, most, covered, least_before, most_before = words[at : at + 8]
        if calls:
            least = min(least, least_before or least)
            found[at] = AddedUp(content, calls, total, covered, least, max(most, most_before))
    return found
