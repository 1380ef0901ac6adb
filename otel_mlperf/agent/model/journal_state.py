"""State of one journal that the agent could not read again.

It contains the position of the reader, the meaning of the journal's numbers, and the waiting rows
as the bytes that came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import numpy as np

from otel_mlperf import ids, names
from otel_mlperf.intervals import CoveredTime  # noqa: TC001 - msgspec reads it
from otel_mlperf.journal.layout import ROW_BYTES, Word
from otel_mlperf.journal.meta import JournalMeta  # noqa: TC001 - msgspec reads it
from otel_mlperf.journal.section_sums import RunningSums

if TYPE_CHECKING:
    from numpy.typing import NDArray

_UNKNOWN: Final[list[Any]] = ["section", "other", names.OTHER, "", {}]


class Root(msgspec.Struct):
    """A span that makes a trace and has not ended: a step, a run, or somebody else's trace."""

    kind: Literal["step", "run", "foreign"]
    trace: bytes
    """16 bytes."""
    phase: str = ""
    n: int = 0
    number: int = 0
    parent: int = 0
    """For a step the run-trace section around it."""
    start: int = 0
    name: int = 0
    track: int = 0
    trace_state: str = ""
    """Of somebody else's trace."""
    is_unsampled: bool = False
    """Whether the caller who started the trace has not sampled it."""


class RecentStep(msgspec.Struct, array_like=True):
    """A step that ended lately: rows of other threads may still come for it."""

    root: Root
    kept: str | None
    end: int = 0


class KeptStep(msgspec.Struct, array_like=True):
    """The rows of a step that become spans, perhaps once it is told when a GPU was in them."""

    root: Root
    reason: str
    rows: bytes
    payloads: dict[int, dict[str, Any]]
    figures: dict[int, dict[str, Any]] = {}
    """What was told so far, by span."""
    marks: int = 0
    """For which it has waited."""


class JournalState(msgspec.Struct):
    """One journal: where reading goes on, what its numbers mean, what waits."""

    meta: JournalMeta
    next: int = 1
    holes: list[int] = []
    entries: dict[int, list[Any]] = {}
    tracks: dict[int, list[Any]] = {}
    roots: dict[int, Root] = {}
    ended: dict[int, RecentStep] = {}
    cancelled: dict[int, list[int]] = {}
    """Sections that never were: id to the parent and root that their children get."""
    demoted: dict[int, int] = {}
    """Steps of a forked child, which are sections of the run: id to parent."""
    sums: RunningSums = msgspec.field(default_factory=RunningSums)
    """What all sections took that were read so far."""
    fresh: bytes = b""
    """Rows since the last mark."""
    held: bytes = b""
    """Section rows whose step, or whose parent, has not been seen yet."""
    held_marks: int = 0
    untold: dict[int, KeptStep] = {}
    """By the step's span."""
    device_places: dict[int, tuple[str, bool]] = {}
    """Path and *beside* of sections outside steps of which it will be told when a GPU was in."""
    device_clocks: dict[int, list[int]] = {}
    """Bounds of host clock less device clock, and up to which device time, by device."""
    payloads: bytes = b""
    """Payload rows whose section has not come yet."""
    stale: list[int] = []
    """Ids in the open table for which there is a row."""
    open: bytes = b""
    around: bytes = b""
    """Sections (OPEN_TYPE) that have ended, but whose rows are behind what is worked out next."""
    words: dict[int, int] = {}
    cells: bytes = b""
    cells_stored: dict[int, list[int]] = {}
    """Aggregates as last written to the tables: entry to count, sum and what others covered."""
    debts_ns: dict[str, int] = {}
    """By path outside steps, what aggregated sections took of its own time and has no row yet."""
    first_steps: list[int] = []
    """When phases began to have steps: what was before the first of one is set-up."""
    covers: dict[int, CoveredTime] = {}
    inside_steps: dict[int, list[tuple[int, int, int, int]]] = {}
    """Sections of the run inside an open step, by its id: start, end, parent and track."""
    forced: set[int] = set()
    """Open sections that are kept whatever happens: a child of theirs was."""
    segments: dict[int, int] = {}
    """Sections open for long: id to the segments sent."""
    errors: dict[int, list[Any]] = {}
    """Errors on their way up: the section that each reached to where it began (name, step)."""
    left: bool = False
    is_whole: bool = True
    """Whether it was read to its end, once it has ended."""
    alive_ns: int = 0
    """When somebody last saw its process alive."""
    ended_ns: int = 0
    """When its run ended; of one that died its last sign of life."""
    outcome: str = "running"
    error: list[str] = []
    error_step: int | None = None
    error_section: str = ""
    result: dict[str, Any] = {}
    sections: int = 0
    ring_full: int = 0
    """Sections dropped by the full ring that are in the accounts."""
    damaged: int = 0
    """Names, attributes and cells that something has written over."""
    unread: int = 0
    """Sections of which nothing is known but that they were written over, or cut off."""
    redacted: int = 0
    """Values of calls that the agent hid; those that the process hid itself are in its words."""

    @property
    def overhead_ns(self) -> int:
        """What recording took of the process's time: its sections, and watching its loop."""
        return self.sections * self.meta.cost_ns + self.words.get(Word.WATCH_TIME, 0)

    @property
    def waiting_rows(self) -> int:
        """Section rows of which it is open what becomes of them."""
        waiting = [self.held, *(step.rows for step in self.untold.values())]
        return sum(len(rows) // ROW_BYTES for rows in waiting)

    @property
    def instance(self) -> str:
        """Id of the rank that it is of, over all its processes."""
        return ids.instance_id(self.meta.run_id, self.meta.restart, self.meta.rank)

    def section(self, number: int) -> list[Any]:
        """Kind, name, category, phase and constant attributes of a section's name.

        ``other`` for one that never arrived.
        """
        entry = self.entries.get(number)
        return entry if entry and entry[0] == "section" else _UNKNOWN

    def sections_of(self, category: str) -> NDArray[np.uint64]:
        """Return the numbers of the section names of a category."""
        own = [n for n, entry in self.entries.items() if entry[:1] == ["section"]]
        return np.array([n for n in own if self.entries[n][2] == category], np.uint64)

    def thread(self, track: int) -> tuple[int, str]:
        """Native id and name of the thread, or task, that a track is; -1 if not known."""
        known = self.tracks.get(track)
        return (int(known[2]), str(known[3])) if known else (-1, "")

    @property
    def run_trace(self) -> bytes:
        """The trace of everything in the run that is outside its steps."""
        return ids.run_trace_id(self.meta.run_id, self.meta.restart).to_bytes(16, "big")

    def step_trace(self, phase: str, n: int) -> bytes:
        """The trace of a step, the same on every rank."""
        meta = self.meta
        return ids.trace_id(meta.run_id, meta.restart, phase, n).to_bytes(16, "big")

    def trace_of(self, root: int) -> bytes:
        """The trace of a section by its root: a step's, the run's, somebody's, or one of its own.

        Steps of a forked child are sections of the run.
        """
        known = self.roots.get(root)
        if known is not None:
            return known.trace
        # Neither makes a root of its own in this journal: a forked child has its parent's run span.
        if root == self.meta.run_span or root in self.demoted:
            return self.run_trace
        return ids.lone_trace_id(self.meta.run_id, root).to_bytes(16, "big")
