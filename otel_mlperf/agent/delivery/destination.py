"""Interface of destinations: the batches that they receive and the verdicts that they return.

A destination accepts spans and metric points: a server, the run folder, a tracker of experiments.
A *factory* makes it from a ``DestinationContext``, and returns None if it is not configured.
Factories are listed in ``destination_list.BUILT_IN``, or are entry points of the group
``otel_mlperf.destinations``.

The agent accounts for each destination by its name: ``created = delivered + rolled_up + unselected
+ lost{reason} + pending``. A destination contributes to that only by its verdict on each batch. A
batch that was not accepted is stored on disk, is offered again, and survives the agent.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from otel_mlperf.agent.model.agent_options import Options
    from otel_mlperf.agent.model.scalar_item import ScalarItem
    from otel_mlperf.agent.model.table_rows import TableRows

_log = logging.getLogger("otel_mlperf.agent")
Signal = Literal["spans", "metrics", "scalars", "reports"]
"""Scalars are points of curves by step, for trackers of experiments. A report is the page of the
run, made when the run has ended."""
Form = Literal["items", "otlp"]
NOT_LOADED: Final = "not_loaded"
"""Reason for which the items of a destination that cannot be used are lost."""
FORMS: Final[dict[Signal, Form]] = {"spans": "items", "metrics": "otlp"}
"""Form of the batches for exporters of the OpenTelemetry SDK."""
CONSOLE_FILE: Final = "console-{}.txt"
"""File in the folder of a host's agent with the console exporter's output for a signal."""
SpanKind = Literal["section", "rollup", "segment"]
Instrument = Literal["gauge", "sum", "histogram"]


class SpanItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One finished span: a section, a roll-up of sections, or a segment of one still open."""

    rank: int
    restart: int
    trace_id: str
    """32 hexadecimal digits; all ranks of a step have the same."""
    span_id: str
    parent_id: str = ""
    """Empty for the root of a trace."""
    name: str
    category: str
    phase: str = ""
    track: int = 0
    """Sections of one track nest. A track is a thread or a task."""
    thread: str = ""
    thread_id: int | None = None
    start_ns: int
    """Unix time."""
    end_ns: int
    status: str = "unset"
    """One of ``unset``, ``ok`` and ``error``."""
    interrupted: bool = False
    """Whether its process died during the span."""
    root_id: str = ""
    n: int | None = None
    """For a step: number of steps of its phase that this process started before it."""
    number: int | None = None
    """For a step: its number as reported by the program."""
    epoch: int | None = None
    kept: str = ""
    """Reason for which it is sampled as a span."""
    attributes: dict[str, Any] = {}
    links: list[tuple[Any, ...]] = []
    """Trace and span id of each link. Attributes and flags follow if it has attributes or leads to
    another process."""
    events: list[tuple[int, str, dict[str, Any]]] = []
    """Unix time, name and attributes of each event. An exception that left the span is in
    attributes."""
    kind: SpanKind = "section"
    """Only sections are items of the accounts."""
    marks: list[tuple[int, str, str, int]] = []
    """For a run: marks of the program, each with Unix time, name, phase and step."""
    marks_left_out: int = 0


class PointItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One value of one metric series; totals are cumulative since ``start_ns``."""

    name: str
    unit: str
    instrument: Instrument
    labels: dict[str, Any] = {}
    time_ns: int
    start_ns: int = 0
    """0 for a gauge."""
    value: float | None
    """For a histogram its sum; None ends the series."""
    count: int = 0
    """Number of values of a histogram."""
    min: float | None = None
    max: float | None = None


class Batch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A batch that is offered to a destination.

    It contains spans or metric points of one rank, or of the node's agent; or scalars of all ranks
    together.
    """

    number: int
    """Number of the batch; the same when the batch is offered again, perhaps by another agent."""
    signal: Signal
    items: int
    """Number of items that the accounts count."""
    resource: dict[str, Any] = {}
    """Resource attributes of OpenTelemetry that identify the sender: service, run, rank."""
    spans: list[SpanItem] = []
    points: list[PointItem] = []
    scalars: list[ScalarItem] = []
    report: bytes = b""
    """Content of an HTML file."""
    otlp: bytes = b""
    """The encoded export request, in place of the lists, for a destination of form ``otlp``."""


UNSELECTED: Final = "unselected"


class Delivered(msgspec.Struct, frozen=True):
    """Verdict: the batch was accepted for good."""

    lost: dict[str, int] = {}
    """Items of the batch that were not accepted, by reason; those under ``UNSELECTED`` were not
    wanted."""


class Refused(msgspec.Struct, frozen=True):
    """Verdict: the batch will never be accepted. Its items are lost for this reason."""

    reason: str
    """An identifier in lower case. It becomes a label, so there must be few of them."""


class TryLater(msgspec.Struct, frozen=True):
    """Verdict: the batch could not be accepted now. It waits, and is offered again."""

    reason: str
    """Text for people: what was tried, what was found."""
    after_s: float | None = None
    """The minimum wait before the next try; None: the waits grow by themselves."""


Verdict = Delivered | Refused | TryLater


class DestinationContext(msgspec.Struct, frozen=True):
    """Context from which a factory makes its destination."""

    run_folder: Path
    host: str
    options: Options
    """Options, including ``environ``, the variables that the agent was started with."""
    rows: TableRows
    """Waiting rows of the run folder's tables, for the run folder's destination alone."""
    ranks: Callable[[], dict[int, bool]]
    """Returns the ranks of this host seen so far, and whether each still runs."""


class Destination(Protocol):
    """Interface of a destination: subclasses define ``name``, ``signals`` and ``accept``.

    ``accept`` is called by one thread for each signal, never concurrently for one signal, in the
    order in which batches were made. It may block: nothing else waits for it, and later batches are
    on disk. A batch may be offered twice, if an agent died between the delivery and the record of
    it. ``number`` identifies such a batch. An exception costs the batch (lost as ``internal``,
    logged), never the agent.
    """

    name: str
    """Name in the accounts and in the metrics of our own health: lower case, digits, underscores.
"""
    signals: tuple[Signal, ...]
    form: Form = "items"
    """Whether batches contain lists or an encoded request."""
    buffered_in_wal: bool = False
    """True for the run folder alone. It is offered everything since the last flush, in the agent's
    own loop. What it has not accepted waits in the log of events instead of in the outbox."""

    def accept(self, batch: Batch) -> Verdict:
        """Accept a batch, or return the reason why not."""
        ...

    def close(self, signal: Signal) -> None:
        """Close the signal: no batch of it follows.

        Called by the thread that offered the batches.
        """
        del signal  # nothing to close by default


def report_unusable(destination: str, reason: object) -> None:
    """Log that a destination cannot be used, and what that costs."""
    _log.error("%s cannot be used; its data will be dropped: %s", destination, reason)


def account_of(signal: Signal, destination: str) -> str:
    """Return the name of an account in the agent's state."""
    return f"{signal}/{destination}"
