"""Derivation of sections outside steps: path, concurrency, self time, and sums by place.

Examples are epochs, validation, checkpoints, set-up, requests, and programs without steps. Sections
end one by one, children before parents. Self time is the duration minus the time that children
cover. The place of a section is its path: the section names from below the run's span to the
section's own name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from otel_mlperf import names
from otel_mlperf.agent.derivation.aggregates import OutsideRow, debt_paid
from otel_mlperf.agent.derivation.new_rows import INTERRUPTED_FLAG
from otel_mlperf.agent.derivation.section_calls import (
    SectionCalls,
    SectionPlace,
    Uses,
    calls_at,
    uses_by_row,
)
from otel_mlperf.intervals import CoveredTime
from otel_mlperf.journal.journal_reader import OPEN_TYPE
from otel_mlperf.journal.layout import Flag
from otel_mlperf.tables.run_tables import SectionRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mlperf.agent.derivation.new_rows import Payloads
    from otel_mlperf.agent.derivation.step_rows import EndedStep
    from otel_mlperf.agent.model.journal_state import JournalState
    from otel_mlperf.journal.ring_scan import Rows

_DEEPEST: Final = 32
"""Maximum number of names in a path."""


class OutsideSection(NamedTuple):
    """Section that ended outside steps. Times are monotonic ns."""

    span: int
    parent: int
    root: int
    start: int
    end: int
    name: int
    track: int
    error: bool
    interrupted: bool
    profiled: bool
    """Whether a profiler recorded during the section, which slows it down."""
    on_device: bool
    """Whether the GPU time of the section is reported later."""
    path: tuple[str, ...]
    """Section names from below the run's span to its own."""
    concurrent: bool
    self_ns: int

    @property
    def duration_ns(self) -> int:
        """Return the duration in ns, including sections inside."""
        return self.end - self.start


class _Around(NamedTuple):
    name: int
    parent: int
    track: int


class OutsideSections:
    """Sections of one journal that ended outside steps since the last mark."""

    def __init__(self, rows: Rows, steps: Sequence[EndedStep], journal: JournalState) -> None:
        """Derive sections from ``rows``; ``steps`` reduce the self times of enclosing sections."""
        self._journal = journal
        self._rows: list[tuple[int, ...]] = rows.tolist()
        self._paths: dict[int, tuple[str, ...]] = {}
        self._concurrent: dict[int, bool] = {}
        table = np.frombuffer(journal.open + journal.around, OPEN_TYPE)
        self._around = {
            span: _Around(name, parent, track) for span, parent, _, track, _, name in table.tolist()
        }
        for _, _, span, parent, _, track, name, _, _ in self._rows:
            self._around[span] = _Around(name, parent, track)
        self._loops = {root.track for root in journal.roots.values() if root.kind == "step"}
        self._loops |= {ended.root.track for ended in journal.ended.values()}
        self.ended = self._derive(steps)
        """One section for each row, in the order of the rows."""

    def _derive(self, steps: Sequence[EndedStep]) -> list[OutsideSection]:
        covers = self._journal.covers
        intervals = [(s.start, s.end, s.root.parent, s.root.track) for s in steps]
        intervals += self._after_steps({step.span for step in steps})
        # Sorted by time, because a cover only grows to the right. Siblings on a track never
        # overlap, so the order is also correct from one mark to the next.
        for start, end, parent, track in sorted(intervals):
            around = self._around.get(parent)
            if around is not None and around.track == track:
                covers.setdefault(parent, CoveredTime()).add(start, end)
        sections = [self._section(row) for row in self._rows]
        # Remove covers of sections that are neither open nor among the rows, because they will
        # never end.
        for span in [span for span in covers if span not in self._around]:
            del covers[span]
        return sections

    def _after_steps(self, ended: set[int]) -> list[tuple[int, int, int, int]]:
        """Return start, end, parent and track of the sections that are not inside an open step.

        Sections inside an open step are stored in ``inside_steps`` instead: a cover only grows to
        the right, so the step's interval, which starts earlier, must be added first. If the step is
        cancelled and has no interval, the stored sections are returned.
        """
        journal = self._journal
        going_on = {span: root for span, root in journal.roots.items() if root.kind == "step"}
        intervals: list[tuple[int, int, int, int]] = []
        for start, end, _, parent, _, track, *_ in self._rows:
            for span, root in going_on.items():
                if (root.parent, root.track) == (parent, track) and root.start <= start:
                    journal.inside_steps.setdefault(span, []).append((start, end, parent, track))
                    break
            else:
                intervals.append((start, end, parent, track))
        for span in journal.inside_steps.keys() - going_on.keys():
            inside = journal.inside_steps.pop(span)
            if span not in ended:  # the step was cancelled
                intervals += inside
        return intervals

    def ancestors(self, span: int, known: set[int]) -> set[int]:
        """Return the ids of the sections around ``span``, below the first that is in ``known``."""
        above: set[int] = set()
        while (around := self._around.get(span)) and around.parent and around.parent not in above:
            span = around.parent
            if span in known:
                break
            above.add(span)
        return above

    def _section(self, row: tuple[int, ...]) -> OutsideSection:
        start, end, span, parent, root, track, name, flags, _ = row
        end = max(end, start)
        cover = self._journal.covers.pop(span, None)
        return OutsideSection(
            span=span,
            parent=parent,
            root=root,
            start=start,
            end=end,
            name=name,
            track=track,
            error=bool(flags & Flag.ERROR),
            interrupted=bool(flags & INTERRUPTED_FLAG),
            profiled=bool(flags & Flag.PROFILED),
            on_device=bool(flags & Flag.ON_DEVICE),
            path=self._path(span),
            concurrent=self._is_concurrent(span),
            self_ns=max(0, end - start - cover.covered_ns) if cover else end - start,
        )

    def _is_concurrent(self, span: int) -> bool:
        """Return whether the section or an enclosing section ran on another track than its parent.

        A section directly below the run is instead compared with the tracks of the steps, if there
        are steps. Sections of a forked child are always concurrent with its rank's main process.
        """
        if self._journal.meta.is_child:
            return True
        above: dict[int, None] = {}  # an ordered set, because damaged ids may form a cycle
        while span in self._around and span not in self._concurrent and span not in above:
            above[span] = None
            span = self._around[span].parent
        concurrent = self._concurrent.get(span, False)
        for one in reversed(above):
            concurrent = concurrent or self._has_other_track(one, *self._around[one][1:])
            self._concurrent[one] = concurrent
        return concurrent

    def _has_other_track(self, span: int, parent: int, track: int) -> bool:
        around = self._around.get(parent)
        run = self._journal.meta.run_span
        # If steps run on a separate thread, the thread of the run's span only waits for it.
        if self._loops and span != run and (around is None or parent == run):
            return track not in self._loops
        if around is None:
            root = self._journal.roots.get(run)
            return span != run and root is not None and track != root.track
        return around.track != track

    def _path(self, span: int) -> tuple[str, ...]:
        chain, at = [span], self._around[span].parent
        while at not in self._paths and at in self._around and at != chain[-1]:
            chain.append(at)
            at = self._around[at].parent
            if len(chain) > len(self._around):  # damaged ids that form a cycle
                break
        path = self._paths.get(at, ())
        for below in reversed(chain):
            entry = self._journal.section(self._around[below].name)
            if entry[2] != names.RUN and len(path) < _DEEPEST:
                path = (*path, entry[1])
            self._paths[below] = path
        return path


def sums_by_place(
    sections: list[OutsideSection], state: JournalState
) -> list[tuple[OutsideRow, SectionCalls]]:
    """Return row and calls by era and place; self times exclude aggregates (``debt_paid``)."""
    by_place: dict[tuple[int, int, tuple[str, ...], bool], list[OutsideSection]] = {}
    for section in sections:
        if not section.interrupted:
            # The era is the number of phases whose first step had started before the section.
            era = sum(first <= section.start for first in state.first_steps)
            key = (era, section.name, section.path, section.concurrent)
            by_place.setdefault(key, []).append(section)
    return [_sums(era, same, state) for (era, *_), same in by_place.items()]


def uses_outside(rows: Rows, sections: list[OutsideSection], payloads: Payloads) -> Uses:
    """Return the resource use by place; ``sections[i]`` was derived from ``rows[i]``."""
    uses = Uses()
    for i, use in uses_by_row(rows, payloads):
        uses.setdefault(_place(sections[i]), []).append(use)
    return uses


def _place(section: OutsideSection) -> SectionPlace:
    return SectionPlace(section.name, "/".join(section.path), section.concurrent, in_step=False)


def _sums(
    era: int, sections: list[OutsideSection], state: JournalState
) -> tuple[OutsideRow, SectionCalls]:
    meta, path, place = state.meta, sections[0].path, _place(sections[0])
    _, name, category, phase, _ = state.section(place.name)
    durations = [section.duration_ns for section in sections]
    self_ns = sum(section.self_ns for section in sections)
    row = SectionRow(
        rank=meta.rank,
        restart=meta.restart,
        phase=phase,
        n=None,
        number=None,
        name=name,
        category=category,
        parent=path[-2] if len(path) > 1 else "",
        path=place.path,
        beside=place.concurrent,
        count=len(sections),
        sum_ns=sum(durations),
        self_ns=debt_paid(state, place.path, self_ns, concurrent=place.concurrent),
        min_ns=min(durations),
        max_ns=max(durations),
        start_ns=min(section.start for section in sections) + meta.shift_ns,
    )
    failed = np.array([section.error for section in sections])
    ends = np.array([section.end for section in sections], np.int64)
    took = np.array(durations, np.int64)
    calls = calls_at(place, took, failed, ends, row.self_ns, state)
    return (row, era), calls
