"""Sections outside steps: track, path and self time of each.

Sections end one by one, children before parents. Self time is the duration less the time that the
children have covered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from otel_mlperf import names
from otel_mlperf.agent.derivation.new_rows import INTERRUPTED_FLAG
from otel_mlperf.intervals import CoveredTime
from otel_mlperf.journal.journal_reader import OPEN_TYPE
from otel_mlperf.journal.layout import Flag

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_mlperf.agent.derivation.ended_steps import EndedStepFacts
    from otel_mlperf.agent.model.journal_state import JournalState
    from otel_mlperf.journal.ring_scan import Rows

_DEEPEST: Final = 32
"""Maximum number of names in a path."""


class OutsideSection(NamedTuple):
    """Section that ended outside steps."""

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
    """Whether a profiler slowed it down."""
    on_device: bool
    """Whether its GPU time is still to come."""
    path: tuple[str, ...]
    """Names from below the run span down to its own."""
    beside: bool
    self_ns: int

    @property
    def duration_ns(self) -> int:
        """Return the whole duration."""
        return self.end - self.start


class _Around(NamedTuple):
    name: int
    parent: int
    track: int


class OutsideSections:
    """Derivation of one journal's sections outside steps, mark by mark."""

    def __init__(self, journal: JournalState, rows: Rows) -> None:
        self._journal = journal
        self._rows: list[tuple[int, ...]] = rows.tolist()
        self._paths: dict[int, tuple[str, ...]] = {}
        self._besides: dict[int, bool] = {}
        table = np.frombuffer(journal.open + journal.around, OPEN_TYPE)
        self._around = {
            span: _Around(name, parent, track) for span, parent, _, track, _, name in table.tolist()
        }
        for _, _, span, parent, _, track, name, _, _ in self._rows:
            self._around[span] = _Around(name, parent, track)
        self._loops = {root.track for root in journal.roots.values() if root.kind == "step"}
        self._loops |= {ended.root.track for ended in journal.ended.values()}

    def sections(self, steps: Iterable[EndedStepFacts]) -> list[OutsideSection]:
        """Return the sections in the order of their ends; ``steps`` cover what is around them."""
        covers = self._journal.covers
        steps = list(steps)
        intervals = [(s.start, s.end, s.root.parent, s.root.track) for s in steps]
        intervals += self._after_steps({step.span for step in steps})
        # By time, because a cover only grows to the right. Siblings on a track follow each other,
        # so the order holds from mark to mark too.
        for start, end, parent, track in sorted(intervals):
            around = self._around.get(parent)
            if around is not None and around.track == track:
                covers.setdefault(parent, CoveredTime()).add(start, end)
        sections = [self._section(row) for row in self._rows]
        # Covers of sections that are neither open nor among these rows belong to sections that
        # never end.
        for span in [span for span in covers if span not in self._around]:
            del covers[span]
        return sections

    def _after_steps(self, ended: set[int]) -> list[tuple[int, int, int, int]]:
        """Return the intervals of the sections, without those inside an open step.

        An open step covers the sections inside it. They come before the step, and a cover only
        grows to the right.
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
            if span not in ended:  # it was cancelled
                intervals += inside
        return intervals

    def ancestors(self, span: int, known: set[int]) -> set[int]:
        """Return the sections around ``span`` up to the run's, or up to a ``known`` one."""
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
            beside=self._is_beside(span),
            self_ns=max(0, end - start - cover.covered_ns) if cover else end - start,
        )

    def _is_beside(self, span: int) -> bool:
        """Return whether the section or one around it ran on another track than its parent.

        Directly below the run, the track is compared with that of the steps. A forked child is
        always concurrent to its rank's own process.
        """
        if self._journal.meta.is_child:
            return True
        above: dict[int, None] = {}  # in order; ids may name each other
        while span in self._around and span not in self._besides and span not in above:
            above[span] = None
            span = self._around[span].parent
        beside = self._besides.get(span, False)
        for one in reversed(above):
            beside = self._besides[one] = beside or self._is_apart(one, *self._around[one][1:])
        return beside

    def _is_apart(self, span: int, parent: int, track: int) -> bool:
        around = self._around.get(parent)
        run = self._journal.meta.run_span
        # Where the steps run on a thread of their own, the run span's own thread only waits for it.
        if self._loops and span != run and (around is None or parent == run):
            return track not in self._loops
        if around is None:
            root = self._journal.roots.get(run)
            return span != run and root is not None and track != root.track
        return around.track != track

    def _path(self, span: int) -> tuple[str, ...]:
        """Return the names from below the run span to the section's own; deep ones share a path."""
        chain, at = [span], self._around[span].parent
        while at not in self._paths and at in self._around and at != chain[-1]:
            chain.append(at)
            at = self._around[at].parent
            if len(chain) > len(self._around):  # ids that refer to each other
                break
        path = self._paths.get(at, ())
        for below in reversed(chain):
            entry = self._journal.section(self._around[below].name)
            if entry[2] != names.RUN and len(path) < _DEEPEST:
                path = (*path, entry[1])
            self._paths[below] = path
        return path
