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
    """A journal was found."""

    journal: str
    meta: JournalMeta


class Named(msgspec.Struct, array_like=True, tag="named", frozen=True):
    """Entries that a journal has registered: number to content."""

    journal: str
    entries: dict[int, list[Any]]
    damaged: int = 0
    """How many more were written over."""


class Polled(msgspec.Struct, array_like=True, tag="polled", frozen=True):
    """Rows taken from a journal, and where the next look starts."""

    journal: str
    next: int
    holes: list[int]
    rows: bytes
    gone: int = 0
    """How many more there were of which nothing is left."""
    around: bytes = b""
    """Sections (OPEN_TYPE) around these rows whose own were found by the same look, and follow."""


class Left(msgspec.Struct, array_like=True, tag="left", frozen=True):
    """A journal ended: its process is gone, or its run was stopped.

    ``open`` holds the sections that were open at the end; ``cells`` and ``words`` as in Seen.
    """

    journal: str
    monotonic_ns: int
    """When somebody last saw its process alive, which may be long ago; 0: nobody has."""
    open: bytes
    cells: bytes
    words: dict[int, int]
    damaged: int = 0
    """Sections of which nothing is known but that something has written over them."""
    is_whole: bool = True
    """Whether it was read to its end; its file may be gone."""


class Seen(msgspec.Struct, array_like=True, frozen=True):
    """The state of a journal's memory at one moment."""

    open: bytes
    """Open-section table (OPEN_TYPE), taken after the rows."""
    cells: bytes
    words: dict[int, int]
    """Header words that count something, or say when."""
    alive_ns: int = 0
    """As ``monotonic_ns`` of Left."""


class SensorReading(msgspec.Struct, array_like=True, frozen=True):
    """One value that a sensor gave."""

    journal: str
    """Of the rank that it is of; empty: it is of the node, or of a device that no rank uses."""
    name: str
    labels: dict[str, str]
    value: float
    text: str = ""
    """As of a measurement."""


class Read(msgspec.Struct, array_like=True, tag="read", frozen=True):
    """A source was read: what it said before and does not say now is absent."""

    source: str
    unix_ns: int
    readings: list[SensorReading]
    metrics: list[Metric] = []
    """Those that ``names`` does not have: a replay needs no package that brought them."""


class WarningHeld(msgspec.Struct, array_like=True, tag="held", frozen=True):
    """A warning was seen to hold, again or for the first time."""

    id: str
    """Of its row in the table of findings."""
    journal: str
    """As of a reading."""
    labels: dict[str, str]
    start_unix_ns: int
    """Since when; with the three above it says which warning it is."""
    end_unix_ns: int
    value: float
    """The worst so far of what is compared with the threshold."""
    threshold: float


class Mark(msgspec.Struct, array_like=True, tag="mark", frozen=True):
    """Now everything before is worked out: once a second, and when a run ends."""

    monotonic_ns: int
    unix_ns: int
    seen: dict[str, Seen]
    last: bool = False
    """Whether nothing follows: no journal is left."""


class WindowConverted(msgspec.Struct, array_like=True, tag="converted", frozen=True):
    """A profiler window became spans, which are in the store, and requests, which are in a file."""

    window: str
    """File name of its description."""
    instance: str
    """Of the rank that it belongs to."""
    digest: str = ""
    events: int = 0
    rolled_up: int = 0
    file: str = ""
    """Name of the file that holds the requests one after the other."""
    check: int = 0
    """CRC-32 of that file."""
    begin: int = 0
    """Where in the file the first request begins."""
    requests: list[tuple[int, int]] = []
    """Of each its number of events and of bytes."""
    lost: str = ""
    """Why there is none of it; empty if it was converted."""
    end_ns: int = 0
    """When the window ended, Unix time."""
    readings: list[SensorReading] = []
    """What it comes to."""


Event = Joined | Named | Polled | Left | Read | WarningHeld | Mark | WindowConverted
