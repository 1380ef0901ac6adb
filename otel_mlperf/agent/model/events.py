"""Events of the agent, which are logged durably before they are processed.

Everything that the agent derives (tables, histograms, requests) is a function of these events in
order. A restarted agent that replays the events therefore gets the same result, down to the bytes
of each request. For that reason, events also contain times, readings and cells.
"""

from __future__ import annotations

from typing import Any

import msgspec

from otel_mlperf.journal.meta import JournalMeta
from otel_mlperf.names import Metric


class Joined(msgspec.Struct, array_like=True, tag="joined", frozen=True):
    """Event: a new journal was found in the folder."""

    journal: str
    meta: JournalMeta


class Named(msgspec.Struct, array_like=True, tag="named", frozen=True):
    """Event: new entries (names, tracks, cells) of a journal, by entry number."""

    journal: str
    entries: dict[int, list[Any]]
    damaged: int = 0
    """Number of further entries that were overwritten before the agent read them."""


class Polled(msgspec.Struct, array_like=True, tag="polled", frozen=True):
    """Event: rows read from a journal, and the slot at which the next poll starts reading."""

    journal: str
    next: int
    holes: list[int]
    rows: bytes
    gone: int = 0
    """Number of further rows that were overwritten or never written, so their content is
    unknown."""
    around: bytes = b""
    """Sections (OPEN_TYPE) that enclose these rows. Their own rows follow in later events."""


class Left(msgspec.Struct, array_like=True, tag="left", frozen=True):
    """Event: a journal ended, because its process exited or its run was stopped.

    ``open`` contains the sections that were open at the end. ``cells`` and ``words`` are as in
    ``Seen``.
    """

    journal: str
    monotonic_ns: int
    """Time at which the journal's process was last seen alive, possibly long ago; 0 if
    never."""
    open: bytes
    cells: bytes
    words: dict[int, int]
    damaged: int = 0
    """Number of sections that were overwritten, so nothing else is known about them."""
    is_whole: bool = True
    """Whether the journal was read to its end; False, for example, if its file was removed
    before."""


class Seen(msgspec.Struct, array_like=True, frozen=True):
    """Snapshot of the parts of a journal that are overwritten in place, unlike its rows."""

    open: bytes
    """Open-section table (OPEN_TYPE), read after the rows of the same poll."""
    cells: bytes
    words: dict[int, int]
    """Header words that are counters or times, by word number."""
    alive_ns: int = 0
    """Time at which the journal's process was last seen alive, monotonic ns; 0 if never."""


class SensorReading(msgspec.Struct, array_like=True, frozen=True):
    """One value that a sensor has read."""

    journal: str
    """Journal of the rank to which the reading belongs; empty for the node and for devices that no
    rank uses."""
    name: str
    labels: dict[str, str]
    value: float
    text: str = ""
    """Text in addition to the value, e.g. the reason why a device was lost."""


class Read(msgspec.Struct, array_like=True, tag="read", frozen=True):
    """Event: a sensor source was read. Readings of the source that are absent here have ended."""

    source: str
    unix_ns: int
    readings: list[SensorReading]
    metrics: list[Metric] = []
    """Definitions of metrics that ``names`` lacks, so that a replay does not need the package that
    defines them."""


class WarningHeld(msgspec.Struct, array_like=True, tag="held", frozen=True):
    """Event: the condition of a warning was true when its rule was evaluated."""

    id: str
    """Id of the warning's rule in the table of findings."""
    journal: str
    """Journal, as in ``SensorReading``."""
    labels: dict[str, str]
    start_unix_ns: int
    """Start time. This and the three fields above identify the warning."""
    end_unix_ns: int
    value: float
    """Worst value so far of the quantity that is compared with the threshold."""
    threshold: float


class Mark(msgspec.Struct, array_like=True, tag="mark", frozen=True):
    """Event that triggers derivation from all earlier events, once a second and when a run ends."""

    monotonic_ns: int
    unix_ns: int
    seen: dict[str, Seen]
    last: bool = False
    """Whether this is the last mark, because all journals have ended."""


class WindowConverted(msgspec.Struct, array_like=True, tag="converted", frozen=True):
    """Event: a profiler window was converted to spans and requests, or failed (``lost``)."""

    window: str
    """File name of the description of the window."""
    instance: str
    """Service instance id of the rank to which the window belongs."""
    digest: str = ""
    events: int = 0
    rolled_up: int = 0
    file: str = ""
    """Name of the result file, which contains the concatenated requests."""
    check: int = 0
    """CRC-32 of the result file."""
    begin: int = 0
    """Offset of the first request in the result file."""
    requests: list[tuple[int, int]] = []
    """Number of events, and size in bytes, of each request."""
    lost: str = ""
    """Reason of a failed conversion; empty on success."""
    end_ns: int = 0
    """End of the window, Unix time."""
    readings: list[SensorReading] = []
    """Readings derived from the window."""


Event = Joined | Named | Polled | Left | Read | WarningHeld | Mark | WindowConverted
