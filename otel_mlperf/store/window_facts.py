"""Data types and constants of the tables of profiler windows and of their JSON columns.

The converter of traces writes the data, analyses read it, and ``--json`` prints it unchanged. Times
are nanoseconds: Unix times if the trace has Unix times, else relative to the trace's own zero.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

KERNEL: Final = "kernel"
"""Value of ``what`` in table ``totals`` for device work: kernels, copies and memsets."""
OPERATOR: Final = "operator"
ANNOTATION: Final = "annotation"
ON_DEVICE: Final = "device"
"""Category of totals over device work, e.g. by section or step."""
CAPTURED: Final = "captured"
"""Category of operators that launched work of a graph during the graph's capture."""
ON_HOST: Final = "host"
"""Category of totals over the outermost operators of the host, e.g. by section or step."""


class Loss(msgspec.Struct, frozen=True):
    """Missing or implausible records of one kind in a window."""

    kind: str
    missing: int
    """Number of missing records among ``of`` expected records."""
    of: int
    start_ns: int
    """Start of the time range (up to ``end_ns``) of the loss."""
    end_ns: int
    of_part: int = 0
    """Number of expected records in this time range; 0: unknown."""
    device: int | None = None
    stream: int | None = None
    what: str = ""
    """Affected records, or the extent of the implausibility."""
    words: str = ""
    """Description of the loss without initial capital and final period; its times are relative to
    the start of the window."""


class DevicePart(msgspec.Struct, frozen=True):
    """Activity of one device in the complete part of a window."""

    device: int
    busy_ns: int
    communication_ns: int
    exposed_communication_ns: int


class WholePart(msgspec.Struct, frozen=True):
    """Longest part of a window in which no device work is missing."""

    start_ns: int
    end_ns: int
    devices: list[DevicePart]

    @property
    def length_ns(self) -> int:
        """Return the length of the part in nanoseconds."""
        return self.end_ns - self.start_ns


class WindowCompleteness(msgspec.Struct, frozen=True, kw_only=True):
    """Completeness of the records of a window."""

    ratio: float
    """Recorded share of the least complete kind of record; 1.0: nothing is missing."""
    is_complete: bool
    has_device_times: bool
    """Whether device times are plausible; if not, the devices were busier than recorded."""
    launches: int
    """Number of calls that launch device work."""
    answered: int
    """Number of these calls whose device work has a record."""
    losses: list[Loss]
    whole: WholePart | None
    """Longest complete part, if device work is missing; None: nothing is missing, or no part is
    complete."""

    @property
    def words(self) -> str:
        """Return the descriptions of all losses as one text; empty if nothing is lost."""
        return "; ".join(loss.words for loss in self.losses)


class CollectiveTotal(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of the kernels of one collective operation, for process groups of one size."""

    operation: str
    """``all_reduce``, ``all_gather``, …"""
    group_size: int | None
    """Number of ranks of the group; None: not recorded in the trace."""
    calls: int
    total_ns: int
    bytes: int
    """Message bytes, summed over the kernels with a known size."""
    bus_bytes: float
    """Bytes on the busiest link, summed over the kernels whose durations sum to ``bus_ns``."""
    bus_ns: int


class UnknownRows(msgspec.Struct, frozen=True, kw_only=True):
    """Timeline rows of one process in a trace that may or may not be device work."""

    process: str
    """Name of the process, or else its id in the trace file."""
    events: int
    is_device: bool
    """Whether the process is a device by its name; false: its kind is unknown."""


class CapturedWork(msgspec.Struct, frozen=True, kw_only=True):
    """Result of matching CUDA graph replays in a window with a trace of their graphs' capture."""

    capture: str
    """File name of the capture's trace."""
    captures: int
    """Number of graph captures in this trace."""
    work: int
    """Number of kernels, copies and memsets that were run by graph launches."""
    matched: int
    """Number of these whose operator was found in the capture."""
    unmatched: dict[str, int]
    """Number of these without an operator, by reason."""


class StepEvents(NamedTuple):
    """Stored events and sections of one profiled step, on all ranks."""

    name: str
    phase: str
    """Phase of the step; empty: the step is only known from a profiler annotation."""
    number: int
    windows: list[tuple[int, str]]
    """Rank and digest of each window that contains the step."""
    events: list[dict[str, Any]]
    """Rows of table ``spans`` of the kind ``event``."""
    sections: dict[str, tuple[str, bool]]
    """Recorded sections that enclose the events, by span id: the section's name, and whether it is
    the step itself."""
    lengths_ns: dict[int, int]
    """Duration of the step by rank, without phases and checkpoints inside it if known."""
