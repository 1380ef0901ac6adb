"""Interface of destinations: the batches that they receive and the verdicts that they return.

A destination receives spans, metric points or scalars: a server, the run folder, an experiment
tracker. A *factory* creates it from a ``DestinationContext``, or returns None if the destination is
not configured. Factories are listed in ``destination_list.BUILT_IN``, or are entry points of the
group ``otel_mlperf.destinations``.

The agent keeps an account for each destination: ``created = delivered + rolled_up + unselected +
lost{reason} + pending``. A destination influences the account only by the verdict on each batch. A
batch that was not accepted stays on disk and is offered again, if necessary by the next agent.
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
"""Scalars are points of curves by step, for experiment trackers. A report is the page of the run,
created after the run has ended."""
Form = Literal["items", "otlp"]
NOT_LOADED: Final = "not_loaded"
"""Loss reason for the items of a destination that cannot be loaded."""
FORMS: Final[dict[Signal, Form]] = {"spans": "items", "metrics": "otlp"}
"""Form of the batches for exporters of the OpenTelemetry SDK."""
CONSOLE_FILE: Final = "console-{}.txt"
"""Name of the file with the console exporter's output for a signal, in the agent's folder."""
SpanKind = Literal["section", "rollup", "segment"]
Instrument = Literal["gauge", "sum", "histogram"]


class SpanItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Finished span: a section, a roll-up of sections, or a segment of an open section."""

    rank: int
    restart: int
    trace_id: str
    """32 hexadecimal digits; identical on all ranks of a step."""
    span_id: str
    parent_id: str = ""
    """Empty for the root of a trace."""
    name: str
    category: str
    phase: str = ""
    track: int = 0
    """Number of a thread or asyncio task. Sections on one track are properly nested."""
    thread: str = ""
    thread_id: int | None = None
    start_ns: int
    """Unix time in ns."""
    end_ns: int
    status: str = "unset"
    """One of ``unset``, ``ok`` and ``error``."""
    interrupted: bool = False
    """Whether the process died during the span."""
    root_id: str = ""
    n: int | None = None
    """For a step: its index in its phase, from 0, counted by this process."""
    number: int | None = None
    """For a step: its number as reported by the user's program."""
    epoch: int | None = None
    kept: str = ""
    """Reason why the section was sampled as a span."""
    attributes: dict[str, Any] = {}
    links: list[tuple[Any, ...]] = []
    """Trace id and span id of each link. Attributes and flags follow if the link has attributes or
    its target can be in another process."""
    events: list[tuple[int, str, dict[str, Any]]] = []
    """Unix time, name and attributes of each event. An exception that left the span is not an event
    here, but in ``attributes``."""
    kind: SpanKind = "section"
    """Only spans of kind ``section`` count as items of the accounts."""
    marks: list[tuple[int, str, str, int]] = []
    """For the run's span: marks set by the user's program, each with Unix time, name, phase and
    step number."""
    marks_left_out: int = 0


class PointItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Point of a metric series. Totals are cumulative since ``start_ns``."""

    name: str
    unit: str
    instrument: Instrument
    labels: dict[str, Any] = {}
    time_ns: int
    start_ns: int = 0
    """Unix time in ns; 0 for a gauge."""
    value: float | None
    """Value, or the sum of a histogram; None if the series has ended."""
    count: int = 0
    """For a histogram: the number of values."""
    min: float | None = None
    max: float | None = None


class Batch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Batch that is offered to a destination.

    It contains spans or metric points of one rank or of the node's agent, or scalars of all ranks
    of the node, or a report.
    """

    number: int
    """Unique number, unchanged when the batch is offered again, even by another agent."""
    signal: Signal
    items: int
    """Number of items that the accounts count for the batch."""
    resource: dict[str, Any] = {}
    """OpenTelemetry resource attributes of the sender: service, run, rank."""
    spans: list[SpanItem] = []
    points: list[PointItem] = []
    scalars: list[ScalarItem] = []
    report: bytes = b""
    """Content of an HTML file."""
    otlp: bytes = b""
    """Encoded export request, for a destination of form ``otlp``. The lists are empty in that
    case."""


UNSELECTED: Final = "unselected"


class Delivered(msgspec.Struct, frozen=True):
    """Verdict: the batch was accepted."""

    lost: dict[str, int] = {}
    """Number of items in the batch that were not accepted, by reason. ``UNSELECTED`` items count as
    unselected, not as lost."""


class Refused(msgspec.Struct, frozen=True):
    """Verdict: the batch will never be accepted, so its items are counted as lost."""

    reason: str
    """Lower-case identifier, which becomes a metric label: use few distinct values."""


class TryLater(msgspec.Struct, frozen=True):
    """Verdict: the batch could not be accepted now. The batch stays queued and is offered again."""

    reason: str
    """Message for the log: what was tried and what was found."""
    after_s: float | None = None
    """Minimum wait before the next try; None if exponential backoff alone determines it."""


Verdict = Delivered | Refused | TryLater


class DestinationContext(msgspec.Struct, frozen=True):
    """Context from which a factory creates its destination."""

    run_folder: Path
    host: str
    options: Options
    """Options of the agent, including its environment variables (``environ``)."""
    rows: TableRows
    """Rows that are not stored in the run folder's tables yet; only for the run folder's
    destination."""
    ranks: Callable[[], dict[int, bool]]
    """Function that returns, for each rank of this host, whether its processes still run."""


class Destination(Protocol):
    """Interface of a destination: subclasses define ``name``, ``signals`` and ``accept``.

    Each signal has one thread, which calls ``accept`` in the order in which batches were created.
    ``accept`` is allowed to block: later batches wait on disk, and no other destination is delayed.
    If the agent died before it recorded the outcome of an accepted batch, the batch is offered
    again, with the same ``number``. If ``accept`` raises an exception, the exception is
    logged and the batch is lost as ``internal``.
    """

    name: str
    """Name in accounts and in the agent's health metrics: lower-case letters, digits, "_"."""
    signals: tuple[Signal, ...]
    form: Form = "items"
    """Form of its batches: lists (``items``) or an encoded request (``otlp``)."""
    buffered_in_wal: bool = False
    """True only for the run folder, to which the agent's loop offers everything since the last
    flush. Data that was not accepted waits in the event log (WAL) instead of the outbox."""

    def accept(self, batch: Batch) -> Verdict:
        """Deliver a batch and return the verdict; blocking is allowed."""
        ...

    def close(self, signal: Signal) -> None:
        """Release the resources for ``signal``, for which no more batches follow.

        The thread that offered the batches calls this method.
        """
        del signal  # nothing to close by default


def report_unusable(destination: str, reason: object) -> None:
    """Log that a destination cannot be used, and that its data will be dropped."""
    _log.error("%s cannot be used; its data will be dropped: %s", destination, reason)


def account_of(signal: Signal, destination: str) -> str:
    """Return the name of a destination's account for ``signal``: "signal/destination"."""
    return f"{signal}/{destination}"
