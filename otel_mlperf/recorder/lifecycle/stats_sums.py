"""What do the rows and sums that are known come to since a mark?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_mlperf.journal.layout import ROW, START, Kind
from otel_mlperf.journal.section_sums import Inside, MarkSums, Sums, read_mark
from otel_mlperf.recorder.lifecycle.section_stats import SectionStats

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.recorder.instruments.marks import Mark
    from otel_mlperf.recorder.lifecycle.stats_source import AddedUp, Known

_SECTION, _BEGIN, _CANCEL = int(Kind.SECTION), int(Kind.BEGIN), int(Kind.CANCEL)


def work_out(known: Known, mark: Mark, name_of: Callable[[int], str]) -> dict[str, SectionStats]:
    """The sections that ended after ``mark``, those that took most first."""
    told = read_told(known, mark)
    sums = told.sections if told else {}
    new: dict[int, list[int]] = {}
    for number, (durations, own) in _new_calls(known, mark.slot).items():
        new[number] = durations
        _add(sums, number, _added_up(durations, sum(own)))
    cells = [_since(cell, mark.added_up.get(at)) for at, cell in known.cells.items()]
    for cell in cells:
        section = sums.get(cell.content[6])
        if section is not None:  # which they were in: its own time is what they leave of it
            section.self_ns = max(0, section.self_ns - (cell.total_ns - cell.covered_ns))
    by_name: dict[str, Sums] = {}
    new_by_name: dict[str, list[int]] = {}
    for number, of in sums.items():
        name = name_of(number)
        _add(by_name, name, of)
        if number in new:
            new_by_name[name] = new_by_name.get(name, []) + new[number]
    found = {name: _stats(name, of, new_by_name.get(name, [])) for name, of in by_name.items()}
    for cell in cells:
        if cell.calls:
            name = cell.content[2]
            found[name] = _with_cell(found.get(name), cell, name, from_start=mark.number == START)
    return dict(sorted(found.items(), key=lambda item: -item[1].total_ns))


def _add(sums: dict[Any, Sums], key: int | str, of: Sums) -> None:
    known = sums.get(key)
    if known is None:
        sums[key] = of
    else:
        known.add(of)


def read_told(known: Known, mark: Mark) -> MarkSums | None:
    """What the agent has told of it; None: not what it would have to."""
    published = known.published
    next_ = 1 if published is None else published.next
    if mark.slot >= next_ - 1:
        # It is all in the ring, if that still holds it.
        return MarkSums() if mark.slot >= known.first - 1 else None
    told = None if published is None else read_mark(published, mark.number)
    return told if told and told.slot == mark.slot and known.first <= next_ else None


def _new_calls(known: Known, after: int) -> dict[int, tuple[list[int], list[int]]]:
    """Durations and self times of the rows behind slot ``after``, by the number of the name.

    All rows are gone through: those before it may be inside sections that ended behind it.
    """
    # A copy: after the end it is asked again.
    inside = Inside() if known.published is None else known.published.inside.copy()
    took = inside.by_section
    calls: dict[int, tuple[list[int], list[int]]] = {}
    for start, end, span, parent, _, track, name, flags, slot in ROW.iter_unpack(known.rows):
        kind = flags & 15
        if kind == _SECTION:
            own = duration = end - start
            if span in took:
                own -= took.pop(span).get(track, 0)
            if not parent:
                parent = inside.around(span, 0)  # noqa: PLW2901 - a step's row does not say it
            around = took.setdefault(parent, {})
            around[track] = around.get(track, 0) + duration
            if slot > after:
                of = calls.get(name) or calls.setdefault(name, ([], []))
                of[0].append(duration)
                of[1].append(max(own, 0))
        elif kind == _BEGIN:
            inside.begin(span, parent)
        elif kind == _CANCEL:  # it never was: what was inside was inside what is around
            inside.move(span, inside.around(span, parent))
    return calls


def _added_up(durations: list[int], self_ns: int) -> Sums:
    count, total = len(durations), sum(durations)
    mean = total / count
    spread = sum([(duration - mean) ** 2 for duration in durations])
    return Sums(count, total, self_ns, min(durations), max(durations), spread)


def _since(cell: AddedUp, before: tuple[int, int, int] | None) -> AddedUp:
    count, total, covered = before or (0, 0, 0)
    return cell._replace(
        calls=cell.calls - count,
        total_ns=cell.total_ns - total,
        covered_ns=cell.covered_ns - covered,
    )


def _stats(name: str, of: Sums, new: list[int]) -> SectionStats:
    return SectionStats(
        name,
        of.count,
        of.total_ns,
        of.self_ns,
        of.least_ns,
        of.most_ns,
        of.spread / of.count,
        (of.counts, new),
    )


def _with_cell(
    other: SectionStats | None, cell: AddedUp, name: str, *, from_start: bool
) -> SectionStats:
    """With calls that are only added up: their shortest and longest are known from the start."""
    least, most = (cell.least_ns, cell.most_ns) if from_start else (None, None)
    count, total, own = cell.calls, cell.total_ns, cell.total_ns - cell.covered_ns
    if other is not None:
        count, total, own = count + other.count, total + other.total_ns, own + other.self_ns
        least = None if least is None or other.min_ns is None else min(least, other.min_ns)
        most = None if most is None or other.max_ns is None else max(most, other.max_ns)
    return SectionStats(name, count, total, own, least, most, None, None)
