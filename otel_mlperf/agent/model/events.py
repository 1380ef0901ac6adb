"""Events of the agent, logged before they are processed.

Everything that the agent derives (tables, histograms, requests) is a function of these events in
order. Events are durable first. A new agent that replays them therefore arrives at the same result,
down to the bytes of each request. For that reason time, readings and cells are in the events too.
"""

from __future__ import annotations

from typing import Any

import msgspec

from otel_mlperf.journal.meta import JournalMeta
from otel_mlperf.names import Metric


class Joined(msgspec.Struct, array_like=True, tag="joined", frozen=True):
    """Event: a journal was found."""

    journal: str
    meta: JournalMeta


class Named(msgspec.Struct, array_like=True, tag="named", frozen=True):
    """Event: entries that a journal has registered, number to content."""

    journal: str
    entries: dict[int, list[Any]]
    damaged: int = 0
    """Number of further entries that were overwritten."""


class Polled(msgspec.Struct, array_like=True, tag="polled", frozen=True):
    """Event: rows read from a journal, and where the next look starts."""

    journal: str
    next: int
    holes: list[int]
    rows: bytes
    gone: int = 0
    """Number of further rows that are lost completely."""
    around: bytes = b""
    """Sections (OPEN_TYPE) around these rows whose own rows the same look found, and follow."""


class Left(msgspec.Struct, array_like=True, tag="left", frozen=True):
    """Event: a journal ended, because its process is gone or its run was stopped.

    ``open`` contains the sections that were open at the end; ``cells`` and ``words`` as in Seen.
    """

    journal: str
    monotonic_ns: int
    """When its process was last seen alive, which may be long ago; 0: never."""
    open: bytes
    cells: bytes
    words: dict[int, int]
    damaged: int = 0
    """Number of sections that were overwritten, so that nothing else is known of them."""
    is_whole: bool = True
    """Whether it was read to its end; its file may be gone."""


class Seen(msgspec.Struct, array_like=True, frozen=True):
    """State of a journal's memory at one moment."""

    open: bytes
    """Open-section table (OPEN_TYPE), read after the rows."""
    cells: bytes
    words: dict[int, int]
    """Header words that are counters or times."""
    alive_ns: int = 0
    """As ``monotonic_ns`` of Left."""


class SensorReading(msgspec.Struct, array_like=True, frozen=True):
    """One value read by a sensor."""

    journal: str
    """Journal of the rank that it belongs to; empty: of the node, or of a device that no rank uses.
"""
    name: str
    labels: dict[str, str]
    value: float
    text: str = ""
    """Text of a measurement."""


class Read(msgspec.Struct, array_like=True, tag="read", frozen=True):
    """Event: a source was read; a previous reading that is absent now has ended."""

    source: str
    unix_ns: int
    readings: list[SensorReading]
    metrics: list[Metric] = []
    """Metrics that ``names`` lacks: a replay does not need the package that defines them."""


class WarningHeld(msgspec.Struct, array_like=True, tag="held", frozen=True):
    """Event: a warning was seen to hold, again or for the first time."""

    id: str
    """Id of its row in the table of findings."""
    journal: str
    """Journal as in a reading."""
    labels: dict[str, str]
    start_unix_ns: int
    """Start time; with the three fields above it identifies the warning."""
    end_unix_ns: int
    value: float
    """The worst value so far of what is compared with the threshold."""
    threshold: float


class Mark(msgspec.Struct, array_like=True, tag="mark", frozen=True):
    """Event: all earlier events are to be processed now, once a second and when a run ends."""

    monotonic_ns: int
    unix_ns: int
    seen: dict[str, Seen]
    last: bool = False
    """Whether nothing follows: no journal is left."""


class WindowConverted(msgspec.Struct, array_like=True, tag="converted", frozen=True):
    """Event: a profiler window was converted to spans in the store and requests in a file."""

    window: str
    """File name of its description."""
    instance: str
    """Instance of the rank that it belongs to."""
    digest: str = ""
    events: int = 0
    rolled_up: int = 0
    file: str = ""
    """Name of the file that contains the requests one after the other."""
    check: int = 0
    """CRC-32 of that file."""
    begin: int = 0
    """Offset of the first request in the file."""
    requests: list[tuple[int, int]] = []
    """Number of events and of bytes of each request."""
    lost: str = ""
    """Reason why it was not converted; empty if it was."""
    end_ns: int = 0
    """When the window ended, Unix time."""
    readings: list[SensorReading] = []
    """Readings derived from the window."""


Event = Joined | Named | Polled | Left | Read | WarningHeld | Mark | WindowConverted
