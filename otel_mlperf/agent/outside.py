"""What happened outside steps: epochs, validation, checkpoints, set-up, and code without steps?

These sections end one by one, children before parents. Each is measured by its path (the names
from below the run span); self time comes from how much of it its children have covered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from otel_mlperf import names
from otel_mlperf.agent.batch import INTERRUPTED
from otel_mlperf.agent.kept import section_entry
from otel_mlperf.agent.state import Cover
from otel_mlperf.journal.layout import Flag
from otel_mlperf.journal.reader import OPEN_TYPE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_mlperf.agent.state import JournalState
    from otel_mlperf.agent.steps import StepFacts
    from otel_mlperf.journal.reader import Rows


class Section(NamedTuple):
    """One section that ended outside steps."""

    span: int
    parent: int
    root: int
    start: int
    end: int
    name: int
    track: int
    error: bool
    interrupted: bool
    path: list[str]
    parent_name: str
    beside: bool
    self_ns: int


class _Around(NamedTuple):
    name: int
    parent: int
    track: int


class Outside:
    """Works out one journal's sections outside steps, mark by mark."""

    def __init__(self, journal: JournalState, rows: Rows) -> None:
        self._journal = journal
        self._rows = rows
        table = np.frombuffer(journal.open, OPEN_TYPE)
        self._around = {
            int(e["span"]): _Around(int(e["name"]), int(e["parent"]), int(e["track"]))
            for e in table
        }
        for row in rows:
            around = _Around(int(row["name"]), int(row["parent"]), int(row["track"]))
            self._around[int(row["span"])] = around

    def sections(self, steps: Iterable[StepFacts]) -> list[Section]:
        """The sections in the order in which they ended; ``steps`` cover what is around them."""
        intervals = [(s.start, s.end, s.root.parent, s.root.track) for s in steps]
        for row in self._rows:
            fields = (row["start"], row["end"], row["parent"], row["track"])
            start, end, parent, track = map(int, fields)
            intervals.append((start, end, parent, track))
        for start, end, parent, track in sorted(intervals):
            self._cover(start, end, parent, track)
        found = [self._section(row) for row in self._rows]
        self._forget()
        return found

    def ancestors(self, span: int) -> list[int]:
        """The sections around ``span`` up to the run's, innermost first."""
        found: list[int] = []
        while (around := self._around.get(span)) and around.parent and around.parent not in found:
            found.append(around.parent)
            span = around.parent
        return found

    def _cover(self, start: int, end: int, parent: int, track: int) -> None:
        around = self._around.get(parent)
        if around is None or around.track != track:
            return
        cover = self._journal.covers.setdefault(parent, Cover(0, 0))
        cover.covered += max(0, end - max(start, cover.until))
        cover.until = max(cover.until, end)

    def _section(self, row: Any) -> Section:
        span, parent, root = int(row["span"]), int(row["parent"]), int(row["root"])
        start, end, track = int(row["start"]), int(row["end"]), int(row["track"])
        cover = self._journal.covers.pop(span, None)
        duration = max(0, end - start)
        around = self._around.get(parent)
        path = self._path(span)
        flags = int(row["flags"])
        return Section(
            span=span,
            parent=parent,
            root=root,
            start=start,
            end=max(end, start),
            name=int(row["name"]),
            track=track,
            error=bool(flags & Flag.ERROR),
            interrupted=bool(flags & INTERRUPTED),
            path=path,
            parent_name=path[-2] if len(path) > 1 else "",
            beside=around is not None and around.track != track,
            self_ns=max(0, duration - cover.covered) if cover else duration,
        )

    def _path(self, span: int) -> list[str]:
        path: list[str] = []
        for at in [span, *self.ancestors(span)]:
            around = self._around.get(at)
            if around is None:
                break
            entry = section_entry(self._journal, around.name)
            if entry[2] != names.RUN:
                path.append(entry[1])
        return path[::-1] if path else [section_entry(self._journal, 0)[1]]

    def _forget(self) -> None:
        """Covers of what is neither open nor here belong to sections that never end."""
        for span in [s for s in self._journal.covers if s not in self._around]:
            del self._journal.covers[span]


def outside_row(section: Section, journal: JournalState) -> dict[str, Any]:
    """The row of table ``sections``."""
    meta = journal.meta
    _, name, category, phase, _ = section_entry(journal, section.name)
    duration = section.end - section.start
    return {
        "rank": meta.rank,
        "restart": meta.restart,
        "phase": phase,
        "n": None,
        "number": None,
        "name": name,
        "category": category,
        "parent": section.parent_name,
        "path": "/".join(section.path),
        "beside": section.beside,
        "aggregate": False,
        "count": 1,
        "sum_ns": duration,
        "self_ns": section.self_ns,
        "min_ns": duration,
        "max_ns": duration,
        "start_ns": section.start - meta.monotonic_ns + meta.unix_ns,
    }
