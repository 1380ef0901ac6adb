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
    """Span that is the root of a trace and has not ended: a step, a run, or a foreign trace."""

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
    """Tracestate of a foreign trace."""
    is_unsampled: bool = False
    """Whether the caller who started the trace has not sampled it."""


class RecentStep(msgspec.Struct, array_like=True):
    """Step that ended recently: rows of other threads may still come for it."""

    root: Root
    kept: str | None
    end: int = 0


class KeptStep(msgspec.Struct, array_like=True):
    """Rows of a step that become spans, perhaps once their GPU times are known."""

    root: Root
    reason: str
    rows: bytes
    payloads: dict[int, dict[str, Any]]
    figures: dict[int, dict[str, Any]] = {}
    """Figures reported so far, by span."""
    marks: int = 0
    """Number of marks for which it has waited."""


class JournalState(msgspec.Struct):
    """State of one journal: position of the reader, meaning of its numbers, waiting rows."""

    meta: JournalMeta
    next: int = 1
    holes: list[int] = []
    entries: dict[int, list[Any]] = {}
    tracks: dict[int, list[Any]] = {}
    roots: dict[int, Root] = {}
    ended: dict[int, RecentStep] = {}
    cancelled: dict[int, list[int]] = {}
    """Cancelled sections: id to the parent and root that their children get."""
    demoted: dict[int, int] = {}
    """Steps of a forked child, which are sections of the run: id to parent."""
    sums: RunningSums = msgspec.field(default_factory=RunningSums)
    """Sums of all sections that were read so far."""
    fresh: bytes = b""
    """Rows since the last mark."""
    held: bytes = b""
    """Section rows whose step, or whose parent, has not been seen yet."""
    held_marks: int = 0
    steps_awaiting_gpu: dict[int, KeptStep] = msgspec.field(default_factory=dict, name="untold")
    """Sampled steps that wait for GPU times, by the step's span."""
    device_places: dict[int, tuple[str, bool]] = {}
    """Path and *beside* of sections outside steps that wait for their GPU time."""
    device_clocks: dict[int, list[int]] = {}
    """Bounds of host clock less device clock, and the device time of their validity, by device."""
    payloads: bytes = b""
    """Payload rows whose section has not come yet."""
    stale: list[int] = []
    """Ids in the open table whose rows were read."""
    open: bytes = b""
    around: bytes = b""
    """Sections (OPEN_TYPE) that have ended, but whose rows come after the next derivation."""
    words: dict[int, int] = {}
    cells: bytes = b""
    cells_stored: dict[int, list[int]] = {}
    """Aggregates as last written to the tables: entry to count, sum and time covered by others."""
    debts_ns: dict[str, int] = {}
    """By path outside steps: self time of aggregated sections that is not subtracted from a row
    yet."""
    first_steps: list[int] = []
    """Times of the first step of each phase: everything before the first of one is set-up."""
    covers: dict[int, CoveredTime] = {}
    inside_steps: dict[int, list[tuple[int, int, int, int]]] = {}
    """Sections of the run inside an open step, by its id: start, end, parent and track."""
    forced: set[int] = set()
    """Open sections that are sampled in any case, because a child of theirs was."""
    segments: dict[int, int] = {}
    """Sections open for long: id to the number of segments sent."""
    errors: dict[int, list[Any]] = {}
    """Propagating errors: the section that each reached to its origin (name, step)."""
    left: bool = False
    is_whole: bool = True
    """Whether it was read to its end, once it has ended."""
    alive_ns: int = 0
    """When its process was last seen alive."""
    ended_ns: int = 0
    """When its run ended; for one that died, its last sign of life."""
    outcome: str = "running"
    error: list[str] = []
    error_step: int | None = None
    error_section: str = ""
    result: dict[str, Any] = {}
    sections: int = 0
    ring_full: int = 0
    """Sections dropped by the full ring that are in the accounts."""
    damaged: int = 0
    """Names, attributes and cells that were overwritten."""
    unread: int = 0
    """Number of sections that were overwritten or cut off, so that nothing else is known of them.
"""
    redacted: int = 0
    """Values of calls that the agent redacted; those that the process redacted itself are in its
    words."""

    @property
    def overhead_ns(self) -> int:
        """Return the overhead of recording: its sections, and watching its loop."""
        return self.sections * self.meta.cost_ns + self.words.get(Word.WATCH_TIME, 0)

    @property
    def waiting_rows(self) -> int:
        """Return the number of section rows whose fate is open."""
        waiting = [self.held, *(step.rows for step in self.steps_awaiting_gpu.values())]
        return sum(len(rows) // ROW_BYTES for rows in waiting)

    @property
    def instance(self) -> str:
        """Return the instance id of its rank, over all its processes."""
        return ids.instance_id(self.meta.run_id, self.meta.restart, self.meta.rank)

    def section(self, number: int) -> list[Any]:
        """Return kind, name, category, phase and constant attributes of a section's name.

        ``other`` for a name that never arrived.
        """
        entry = self.entries.get(number)
        return entry if entry and entry[0] == "section" else _UNKNOWN

    def sections_of(self, category: str) -> NDArray[np.uint64]:
        """Return the numbers of the section names of a category."""
        own = [n for n, entry in self.entries.items() if entry[:1] == ["section"]]
        return np.array([n for n in own if self.entries[n][2] == category], np.uint64)

    def thread(self, track: int) -> tuple[int, str]:
        """Return native id and name of the thread, or task, of a track; -1 if not known."""
        known = self.tracks.get(track)
        return (int(known[2]), str(known[3])) if known else (-1, "")

    @property
    def run_trace(self) -> bytes:
        """Return the trace of everything in the run that is outside its steps."""
        return ids.run_trace_id(self.meta.run_id, self.meta.restart).to_bytes(16, "big")

    def step_trace(self, phase: str, n: int) -> bytes:
        """Return the trace of a step, the same on every rank."""
        meta = self.meta
        return ids.trace_id(meta.run_id, meta.restart, phase, n).to_bytes(16, "big")

    def trace_of(self, root: int) -> bytes:
        """Return the trace of a section by its root: the step's, the run's, a foreign or its own.

        Steps of a forked child are sections of the run.
        """
        known = self.roots.get(root)
        if known is not None:
            return known.trace
        # Neither creates a root of its own in this journal: a forked child has its parent's run
        # span.
        if root == self.meta.run_span or root in self.demoted:
            return self.run_trace
        return ids.lone_trace_id(self.meta.run_id, root).to_bytes(16, "big")
