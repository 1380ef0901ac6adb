"""Interface of destinations: the batches that they receive and the verdicts that they return.

A destination accepts spans and metric points: a server, the run folder, a tracker of experiments. A
*factory* makes it from a ``Site``, and returns None where nobody configured that destination.
Factories are listed in ``destination_list.BUILT_IN``, or are entry points of the group
``otel_mlperf.destinations``.

The agent accounts for each destination by its name: ``created = delivered + rolled_up + unselected
+ lost{reason} + pending``. A destination contributes to that only by its verdict on each batch. A
batch that was not accepted is stored on disk, is offered again, and survives the agent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from otel_mlperf.agent.model.agent_options import Options
    from otel_mlperf.agent.model.scalar_item import ScalarItem
    from otel_mlperf.agent.model.table_rows import TableRows

Signal = Literal["spans", "metrics", "scalars", "reports"]
"""Scalars are points of curves by step, for trackers of experiments; a report is the page of the
run, made when it has ended."""
Form = Literal["items", "otlp"]
NOT_LOADED: Final = "not_loaded"
"""Reason of what a destination that cannot be used would have got."""
FORMS: Final[dict[Signal, Form]] = {"spans": "items", "metrics": "otlp"}
"""In which exporters of the OpenTelemetry SDK get batches."""
CONSOLE_FILE: Final = "console-{}.txt"
"""In the folder of a host's agent: what the console exporter prints of a signal."""
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
    """Sections of one track nest: a thread, or a task."""
    thread: str = ""
    thread_id: int | None = None
    start_ns: int
    """Unix time."""
    end_ns: int
    status: str = "unset"
    """Or ``ok``, ``error``."""
    interrupted: bool = False
    """Whether its process died in it."""
    root_id: str = ""
    n: int | None = None
    """Of a step: how many of its phase this process began before it."""
    number: int | None = None
    """Of a step: the number that the program gave it."""
    epoch: int | None = None
    kept: str = ""
    """Why it is a span and not only measured."""
    attributes: dict[str, Any] = {}
    links: list[tuple[Any, ...]] = []
    """Trace and span id of each; of one with attributes, or to another process, these and flags."""
    events: list[tuple[int, str, dict[str, Any]]] = []
    """Unix time, name and attributes of each; an exception that left the span is in attributes."""
    kind: SpanKind = "section"
    """Only sections are items of the accounts."""
    marks: list[tuple[int, str, str, int]] = []
    """Of a run what the program marked in it: Unix time, name, phase and step."""
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
    """Of a histogram its sum; None says that the series has no value any more."""
    count: int = 0
    """Of a histogram."""
    min: float | None = None
    max: float | None = None


class Batch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is offered at once.

    Spans or metric points of one rank, or of the node's agent; or scalars, of all ranks together.
    """

    number: int
    """The same batch has the same one when it is offered again, perhaps by another agent."""
    signal: Signal
    items: int
    """How many of it the accounts count."""
    resource: dict[str, Any] = {}
    """Who speaks: service, run, rank; the resource attributes of OpenTelemetry."""
    spans: list[SpanItem] = []
    points: list[PointItem] = []
    scalars: list[ScalarItem] = []
    report: bytes = b""
    """A file of HTML."""
    otlp: bytes = b""
    """For a destination of form ``otlp`` instead of the lists: the encoded export request."""


UNSELECTED: Final = "unselected"


class Delivered(msgspec.Struct, frozen=True):
    """The batch was taken, for good."""

    lost: dict[str, int] = {}
    """Items of it that were not, by reason; those under ``UNSELECTED`` were not wanted."""


class Refused(msgspec.Struct, frozen=True):
    """The batch will never be taken: its items are lost, for this reason."""

    reason: str
    """A word in small letters; it becomes a label, so there are few of them."""


class TryLater(msgspec.Struct, frozen=True):
    """The batch could not be taken now: it waits, and is offered again."""

    reason: str
    """For people: what was tried, what was found."""
    after_s: float | None = None
    """The least rest before the next try; without it the rests grow by themselves."""


Verdict = Delivered | Refused | TryLater


class Site(msgspec.Struct, frozen=True):
    """What a factory makes its destination from."""

    run_folder: Path
    host: str
    options: Options
    """With ``environ``, the variables that the agent was started with."""
    rows: TableRows
    """Rows of the run folder's tables that wait: for the run folder alone."""
    ranks: Callable[[], dict[int, bool]]
    """The ranks of this host that were seen until now, and whether each still runs."""


class Destination(Protocol):
    """Takes batches; written by inheriting from this and giving ``name``, ``signals``, ``accept``.

    ``accept`` is called by one thread for each signal, never twice at once for one signal, in the
    order in which batches were made. It may block: nothing else waits for it, and what comes
    meanwhile is on disk. A batch may come twice, if an agent died between the delivery and its word
    of it: ``number`` tells. What it raises costs the batch (lost as ``internal``, logged), never
    the agent.
    """

    name: str
    """In the accounts and in the metrics of our own health: small letters, digits, underscores."""
    signals: tuple[Signal, ...]
    form: Form = "items"
    """Whether batches have lists or an encoded request."""
    waits_in_log: bool = False
    """True of the run folder alone: it is offered everything since the last flush, in the agent's
    own loop, and what it has not taken waits in the log of events instead of in the outbox."""

    def accept(self, batch: Batch) -> Verdict:
        """Takes a batch, or says why not."""
        ...

    def close(self, signal: Signal) -> None:
        """No batch of ``signal`` comes any more; called by the thread that brought them."""
        del signal  # nothing to close, unless somebody has something


def account_of(signal: Signal, destination: str) -> str:
    """The name of an account in the agent's state."""
    return f"{signal}/{destination}"
