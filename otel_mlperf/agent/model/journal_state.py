"""State of one journal that can no longer be read from the journal's file."""

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
    """Root of a trace: a step that has not ended, the run, or a trace of a remote caller."""

    kind: Literal["step", "run", "foreign"]
    trace: bytes
    """16 bytes."""
    phase: str = ""
    n: int = 0
    number: int = 0
    parent: int = 0
    """For a step: the id of its enclosing section in the run's trace."""
    start: int = 0
    name: int = 0
    track: int = 0
    trace_state: str = ""
    """Tracestate of a foreign trace."""
    is_unsampled: bool = False
    """Whether the remote caller that started the trace did not sample it."""


class RecentStep(msgspec.Struct, array_like=True):
    """Step that ended recently. Rows of other threads can still arrive for the step."""

    root: Root
    kept: str | None
    end: int = 0


class SampledStep(msgspec.Struct, array_like=True):
    """Section rows of a sampled step, to be converted to spans once the GPU times are known."""

    root: Root
    reason: str
    rows: bytes
    payloads: dict[int, dict[str, Any]]
    figures: dict[int, dict[str, Any]] = {}
    """GPU-time attributes reported so far, by span id."""
    marks: int = 0
    """Number of marks that the step has waited for its GPU times."""


class JournalState(msgspec.Struct):
    """State of one journal: position of the reader, entries, and rows that wait, as raw bytes."""

    meta: JournalMeta
    next: int = 1
    holes: list[int] = []
    entries: dict[int, list[Any]] = {}
    tracks: dict[int, list[Any]] = {}
    roots: dict[int, Root] = {}
    ended: dict[int, RecentStep] = {}
    cancelled: dict[int, list[int]] = {}
    """Cancelled sections: id to the parent and root that their children inherit."""
    demoted: dict[int, int] = {}
    """Steps of a forked child, which are treated as sections of the run: id to parent id."""
    sums: RunningSums = msgspec.field(default_factory=RunningSums)
    """Running sums of all sections that were read so far."""
    fresh: bytes = b""
    """Rows read since the last mark."""
    held: bytes = b""
    """Section rows that wait, because their step or request is open or their root is unknown."""
    held_marks: int = 0
    """Number of consecutive marks at which rows with an unknown root waited."""
    steps_awaiting_gpu: dict[int, SampledStep] = msgspec.field(default_factory=dict, name="untold")
    """Sampled steps that wait for their GPU times, by span id of the step."""
    device_places: dict[int, tuple[str, bool]] = {}
    """Path and concurrency of sections outside steps that wait for their GPU time, by span id."""
    device_clocks: dict[int, list[int]] = {}
    """By device: lower and upper bound of host clock minus device clock, in ns, and the device time
    up to which they are valid."""
    payloads: bytes = b""
    """Payload rows whose section row has not been read yet."""
    stale: list[int] = []
    """Ids in the open-section table whose rows were already read."""
    open: bytes = b""
    around: bytes = b""
    """Sections (OPEN_TYPE) that have ended, but whose rows follow in later events."""
    words: dict[int, int] = {}
    cells: bytes = b""
    cells_stored: dict[int, list[int]] = {}
    """Aggregates as last written to the tables: entry number to count, sum and covered time."""
    debts_ns: dict[str, int] = {}
    """By path outside steps: self time of aggregates that was not yet subtracted from a row."""
    first_steps: list[int] = []
    """Start time of the first step of each phase: separates set-up from later sections."""
    covers: dict[int, CoveredTime] = {}
    """Time that ended children cover, by id of the enclosing open section."""
    inside_steps: dict[int, list[tuple[int, int, int, int]]] = {}
    """Sections that end while an open step encloses them in time, but are children of the step's
    parent: start, end, parent and track, by id of the step."""
    forced: set[int] = set()
    """Open sections that must be sampled, because a section inside them was sampled."""
    segments: dict[int, int] = {}
    """Open sections that are sent in segments: id to the number of segments sent so far."""
    errors: dict[int, list[Any]] = {}
    """Errors on their way to the run's span: id of the section reached so far, to the origin
    (section name, step number)."""
    left: bool = False
    is_whole: bool = True
    """For an ended journal: whether it was read to its end."""
    alive_ns: int = 0
    """Time at which the journal's process was last seen alive, monotonic ns."""
    ended_ns: int = 0
    """Time at which the run ended, or the last sign of life of a process that died; monotonic
    ns."""
    outcome: str = "running"
    error: list[str] = []
    error_step: int | None = None
    error_section: str = ""
    result: dict[str, Any] = {}
    sections: int = 0
    ring_full: int = 0
    """Number of sections dropped by a full ring that are already counted in the accounts."""
    damaged: int = 0
    """Number of names, attributes and cells that were overwritten."""
    unread: int = 0
    """Number of sections about which nothing else is known, because their rows were overwritten or
    cut off."""
    redacted: int = 0
    """Number of values that the agent redacted; ``words`` counts redactions by the process."""

    @property
    def overhead_ns(self) -> int:
        """Return the recording overhead in ns: cost of all sections, and of watching the loop."""
        return self.sections * self.meta.cost_ns + self.words.get(Word.WATCH_TIME, 0)

    @property
    def waiting_rows(self) -> int:
        """Return the number of section rows that wait, e.g. for a step's end or for GPU times."""
        waiting = [self.held, *(step.rows for step in self.steps_awaiting_gpu.values())]
        return sum(len(rows) // ROW_BYTES for rows in waiting)

    @property
    def instance(self) -> str:
        """Return the service instance id of the rank, which all of the rank's processes share."""
        return ids.instance_id(self.meta.run_id, self.meta.restart, self.meta.rank)

    def section(self, number: int) -> list[Any]:
        """Return the entry of a section name: kind, name, category, phase and constant attributes.

        If the entry was lost, the name is ``other``.
        """
        entry = self.entries.get(number)
        return entry if entry and entry[0] == "section" else _UNKNOWN

    def sections_of(self, category: str) -> NDArray[np.uint64]:
        """Return the entry numbers of all section names that have the given category."""
        own = [n for n, entry in self.entries.items() if entry[:1] == ["section"]]
        return np.array([n for n in own if self.entries[n][2] == category], np.uint64)

    def thread(self, track: int) -> tuple[int, str]:
        """Return native id and name of a track's thread or task; (-1, "") if it is unknown."""
        known = self.tracks.get(track)
        return (int(known[2]), str(known[3])) if known else (-1, "")

    @property
    def run_trace(self) -> bytes:
        """Return the trace id (16 bytes) of the run's trace."""
        return ids.run_trace_id(self.meta.run_id, self.meta.restart).to_bytes(16, "big")

    def step_trace(self, phase: str, n: int) -> bytes:
        """Return the trace id (16 bytes) of step ``n`` of a phase, the same on every rank."""
        meta = self.meta
        return ids.trace_id(meta.run_id, meta.restart, phase, n).to_bytes(16, "big")

    def trace_of(self, root: int) -> bytes:
        """Return the trace id (16 bytes) of all sections under the root with span id ``root``.

        A root is a step, the run, a foreign trace, or a section outside steps. Steps of a forked
        child are sections of the run.
        """
        known = self.roots.get(root)
        if known is not None:
            return known.trace
        # Not in ``roots``: the run span of a forked child (that of its parent), and its steps.
        if root == self.meta.run_span or root in self.demoted:
            return self.run_trace
        return ids.lone_trace_id(self.meta.run_id, root).to_bytes(16, "big")
