"""What do the rows and sums that are known come to since a mark?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_mlperf.journal.layout import START
from otel_mlperf.journal.section_sums import ToldMark, read_mark
from otel_mlperf.recorder.lifecycle.new_calls import new_calls
from otel_mlperf.recorder.lifecycle.section_stats import SectionStats, both

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.journal.section_sums import NewCalls, ToldSums
    from otel_mlperf.recorder.instruments.marks import Mark
    from otel_mlperf.recorder.lifecycle.stats_source import AddedUp, Known


def work_out(known: Known, mark: Mark, name_of: Callable[[int], str]) -> dict[str, SectionStats]:
    """The sections that ended after ``mark``, those that took most first."""
    told = read_told(known, mark)
    sections = told.sections if told else {}
    new = new_calls(known, mark.slot)
    self_ns = {number: of.self_ns for number, of in sections.items()}
    for number, calls in new.items():
        self_ns[number] = self_ns.get(number, 0) + calls[1]
    cells = [_since(cell, mark.added_up.get(at)) for at, cell in known.cells.items()]
    for cell in cells:
        number = cell.content[6]
        if number in self_ns:  # which they were in: its own time is what they leave of it
            self_ns[number] = max(0, self_ns[number] - (cell.total_ns - cell.covered_ns))
    found: dict[str, SectionStats] = {}
    for number, own in self_ns.items():
        name = name_of(number)
        stats = _stats(name, own, sections.get(number), new.get(number))
        # Several numbers have the same name in different phases.
        found[name] = stats if name not in found else both(found[name], stats)
    for cell in cells:
        if cell.calls:
            name = cell.content[2]
            found[name] = _with_cell(found.get(name), cell, name, from_start=mark.number == START)
    return dict(sorted(found.items(), key=lambda item: -item[1].total_ns))


def _stats(name: str, self_ns: int, told: ToldSums | None, new: NewCalls | None) -> SectionStats:
    if new is None:
        assert told is not None
        total, least, most = told.total_ns, told.least_ns, told.most_ns
        return SectionStats(name, told.count, total, self_ns, least, most, ([told], []))
    total, _, least, most, durations = new
    if told is None:
        calls: tuple[list[ToldSums], list[int]] = ([], durations)
        return SectionStats(name, len(durations), total, self_ns, least, most, calls)
    return SectionStats(
        name,
        told.count + len(durations),
        told.total_ns + total,
        self_ns,
        min(least, told.least_ns),
        max(most, told.most_ns),
        ([told], durations),
    )


def read_told(known: Known, mark: Mark) -> ToldMark | None:
    """What the agent has told of it; None: not what it would have to."""
    published = known.published
    next_ = 1 if published is None else published.next
    if mark.slot >= next_ - 1:
        # It is all in the ring, if that still holds it.
        return ToldMark(mark.slot, {}) if mark.slot >= known.first - 1 else None
    told = None if published is None else read_mark(published, mark.number)
    return told if told and told.slot == mark.slot and known.first <= next_ else None


def _since(cell: AddedUp, before: tuple[int, int, int] | None) -> AddedUp:
    count, total, covered = before or (0, 0, 0)
    return cell._replace(
        calls=cell.calls - count,
        total_ns=cell.total_ns - total,
        covered_ns=cell.covered_ns - covered,
    )


def _with_cell(
    other: SectionStats | None, cell: AddedUp, name: str, *, from_start: bool
) -> SectionStats:
    """With calls that are only added up: their shortest and longest are known from the start."""
    least, most = (cell.least_ns, cell.most_ns) if from_start else (None, None)
    own = cell.total_ns - cell.covered_ns
    added_up = SectionStats(name, cell.calls, cell.total_ns, own, least, most)
    return added_up if other is None else both(other, added_up)
