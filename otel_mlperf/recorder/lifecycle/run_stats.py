"""Computation of ``run.stats()``: statistics of sections since a mark.

It works during a run, after its end, in a forked child, and while nothing is recorded. It reads no
run folder and waits for no process. Rows that the agent has not summed yet are summed here: by
column if the program has imported NumPy (a third of the time), otherwise row by row.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names
from otel_mlperf.journal.layout import ROW, ROW_BYTES, START, Flag, Kind
from otel_mlperf.journal.section_sums import Inside, PublishedMark, read_mark
from otel_mlperf.recorder.core import recording
from otel_mlperf.recorder.core.attribute_values import safe_name_text
from otel_mlperf.recorder.core.faults import internal_error, warn_once
from otel_mlperf.recorder.instruments.marks import Mark
from otel_mlperf.recorder.lifecycle.section_stats import SectionStats, Stats, both
from otel_mlperf.recorder.lifecycle.stats_source import Known, copy_known

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_mlperf.journal.section_sums import NewCalls, PublishedSums
    from otel_mlperf.recorder.lifecycle.recorder import Recorder
    from otel_mlperf.recorder.lifecycle.stats_source import AddedUp


def compute_stats(
    known: Known, mark: Mark, name_of: Callable[[int], str]
) -> dict[str, SectionStats]:
    """Return statistics of the sections that ended after a mark, the largest total first.

    ``known`` is the snapshot to evaluate; ``name_of`` returns the section name of an entry.
    """
    agent_sums = read_agent_sums(known, mark)
    sections = agent_sums.sections if agent_sums else {}
    new = new_calls(known, mark.slot)
    self_ns = {number: of.self_ns for number, of in sections.items()}
    for number, calls in new.items():
        self_ns[number] = self_ns.get(number, 0) + calls[1]
    cells = [_since(cell, mark.added_up.get(at)) for at, cell in known.cells.items()]
    for cell in cells:
        number = cell.content[6]
        if number in self_ns:  # the enclosing section's self time excludes aggregated calls
            self_ns[number] = max(0, self_ns[number] - (cell.total_ns - cell.covered_ns))
    found: dict[str, SectionStats] = {}
    for number, own in self_ns.items():
        name = name_of(number)
        stats = _stats(name, own, sections.get(number), new.get(number))
        # Merge: a name has a number in each phase.
        found[name] = stats if name not in found else both(found[name], stats)
    for cell in cells:
        if cell.calls:
            name = cell.content[2]
            found[name] = _with_cell(found.get(name), cell, name, from_start=mark.number == START)
    return dict(sorted(found.items(), key=lambda item: -item[1].total_ns))


def _stats(
    name: str, self_ns: int, agent_sums: PublishedSums | None, new: NewCalls | None
) -> SectionStats:
    if new is None:
        assert agent_sums is not None
        total, least, most = agent_sums.total_ns, agent_sums.least_ns, agent_sums.most_ns
        return SectionStats(name, agent_sums.count, total, self_ns, least, most, ([agent_sums], []))
    total, _, least, most, durations = new
    if agent_sums is None:
        calls: tuple[list[PublishedSums], list[int]] = ([], durations)
        return SectionStats(name, len(durations), total, self_ns, least, most, calls)
    return SectionStats(
        name,
        agent_sums.count + len(durations),
        agent_sums.total_ns + total,
        self_ns,
        min(least, agent_sums.least_ns),
        max(most, agent_sums.most_ns),
        ([agent_sums], durations),
    )


def read_agent_sums(known: Known, mark: Mark) -> PublishedMark | None:
    """Return the agent's sums since a mark; None if ``known`` lacks them or the rows after them."""
    published = known.published
    next_ = 1 if published is None else published.next
    if mark.slot >= next_ - 1:
        # The agent has summed no row after the mark: the ring contains all unless overwritten.
        return PublishedMark(mark.slot, {}) if mark.slot >= known.first - 1 else None
    agent_sums = None if published is None else read_mark(published, mark.number)
    return (
        agent_sums if agent_sums and agent_sums.slot == mark.slot and known.first <= next_ else None
    )


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
    """Merge the calls of a cell into ``other``, if any.

    ``from_start``: whether these are all calls of the run; only then are the extremes known.
    """
    least, most = (cell.least_ns, cell.most_ns) if from_start else (None, None)
    own = cell.total_ns - cell.covered_ns
    added_up = SectionStats(name, cell.calls, cell.total_ns, own, least, most)
    return added_up if other is None else both(other, added_up)


_SECTION, _BEGIN, _CANCEL = int(Kind.SECTION), int(Kind.BEGIN), int(Kind.CANCEL)
_PAUSE = int(Flag.PAUSE)
_FEW = 400 * ROW_BYTES
"""Size of rows in bytes below which summing by column is not faster."""


def new_calls(
    known: Known, after: int, modules: Mapping[str, Any] = sys.modules
) -> dict[int, NewCalls]:
    """Summarise the calls in the rows of ``known`` after slot ``after``, by entry.

    Earlier rows are also read, because their sections can be children of later sections.
    ``modules`` are the imported modules: without NumPy, rows are summed one by one.
    """
    # A copy, because summing modifies it and later queries need the original.
    inside = Inside() if known.published is None else known.published.inside.copy()
    if len(known.rows) < _FEW or not _is_loaded(modules.get("numpy")):
        return by_row(known.rows, inside, after)
    # Imported by name, because the recorder must not depend on a module that imports NumPy.
    columns = importlib.import_module("otel_mlperf.journal.row_sums")
    found: dict[int, NewCalls] = columns.new_calls(known.rows, inside, after)
    return found


def _is_loaded(module: Any) -> bool:
    """Return whether a module is imported completely, not still being imported by a thread."""
    spec = getattr(module, "__spec__", None)
    return spec is not None and not getattr(spec, "_initializing", False)


def by_row(rows: bytes, inside: Inside, after: int) -> dict[int, NewCalls]:
    """Summarise the calls whose slot is greater than ``after``, by the number of their name.

    ``inside`` is updated with the sections that ``rows`` start, cancel and end.
    """
    took = inside.by_section
    calls: dict[int, tuple[list[int], list[int]]] = {}
    for start, end, span, parent, _, track, name, flags, slot in ROW.iter_unpack(rows):
        kind = flags & 15
        if kind == _SECTION:
            duration = end - start
            own = duration - inside.held(track, start, end) - inside.take(span, track)
            if flags & _PAUSE:
                inside.pause(track, start, end)
            if not parent:
                parent = inside.around(span, 0)  # noqa: PLW2901 - a step's row does not contain it
            around = took.setdefault(parent, {})
            around[track] = around.get(track, 0) + duration
            if slot > after:
                of = calls.get(name) or calls.setdefault(name, ([], []))
                of[0].append(duration)
                of[1].append(max(own, 0))
        elif kind == _BEGIN:
            inside.begin(span, parent)
        elif kind == _CANCEL:  # children of a cancelled section belong to its parent
            inside.move(span, inside.around(span, parent))
    return {name: (sum(of), sum(own), min(of), max(of), of) for name, (of, own) in calls.items()}


NOTHING: Final = "nothing was recorded in this process"
_FAILED: Final = "the figures could not be computed: see the log"
_UNKNOWN: Final = "stats(since=%r): expected 'start', 'epoch', 'last' or a mark(); 'start' is used"
_NOT_TOLD: Final = "sections not yet reported by the agent, or since a mark older than the last 16"


class RunStats:
    """Section statistics and marks of one run in this process or a forked child."""

    def __init__(
        self, name: str, recorder: Recorder | None, pid: int, at_end: Known | None
    ) -> None:
        """Initialise for a run that process ``pid`` started.

        ``recorder`` is None if nothing was recorded. ``at_end`` is the snapshot at the run's end.
        """
        self._name, self._recorder, self._pid, self._at_end = name, recorder, pid, at_end

    def mark(self, name: Any) -> Mark:
        """Set and return a mark; while nothing is recorded, return a mark without effect."""
        try:
            recorder = self._now()
            if recorder is not None and not recorder.is_retired:
                return _set_mark(recorder, name)
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)
        return Mark(None, 0, 0, time.monotonic_ns())

    def read(self, since: Any) -> Stats:
        """Return statistics since a mark or the start of a period; see ``Run.stats``."""
        try:
            recorder = self._now()
            if recorder is None:
                return Stats({}, run=self._name, missing=(NOTHING,))
            return self._read(recorder, since)
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)
            return Stats({}, run=self._name, missing=(_FAILED,))

    def _now(self) -> Recorder | None:
        """Return the run's recorder (in a forked child, the child's own); None if there is none."""
        if self._pid == os.getpid():
            return self._recorder
        own = recording.unreplaced()  # a query must not create a journal for a child
        return None if own is None or own.is_retired else own

    def _read(self, recorder: Recorder, since: Any) -> Stats:
        marks, known = recorder.marks, self._at_end
        before = marks.asked
        if known is None or recorder is not self._recorder:
            now, before = marks.ask()
            known = copy_known(recorder, now.slot, now.time_ns)
        named = {"start": marks.start, "epoch": marks.epoch, "last": before}
        word = "mark" if isinstance(since, Mark) else since
        if isinstance(since, Mark):
            # For a mark of the parent process: all data of this process is later than the mark.
            mark = since if since.journal is recorder.journal else marks.start
        elif isinstance(since, str) and since in named:
            mark = named[since]
        else:
            warn_once(_UNKNOWN, since)
            mark, word = marks.start, "start"
        return Stats(
            compute_stats(known, mark, lambda number: recorder.registry.about(number)[0]),
            run=self._name,
            since=word,
            elapsed_ns=max(0, known.now_ns - mark.time_ns),
            counted={
                name: total - mark.counted.get(name, 0.0) for name, total in known.counted.items()
            },
            missing=tuple(_missing(known, mark)),
        )


def _set_mark(recorder: Recorder, name: Any) -> Mark:
    registry, stepping = recorder.registry, recorder.stepping
    text = safe_name_text(name)
    entry = registry.entry(("mark", text), text, names.OTHER)
    step = recorder.parents.current_step(registry.phase)
    return recorder.marks.set_own(
        entry, step.number if step else stepping.next_number(registry.phase)
    )


def _missing(known: Known, mark: Mark) -> list[str]:
    missing = []
    if read_agent_sums(known, mark) is None:
        missing.append(_NOT_TOLD)
    if (dropped := known.dropped - mark.dropped) > 0:
        missing.append(f"{dropped:,} sections lost because the journal was full")
    return missing
