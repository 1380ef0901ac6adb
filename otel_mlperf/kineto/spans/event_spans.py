"""Spans of the events of a trace: columns for the encoder, and rows for the run folder.

Ids, parents, times and attributes are the same in both. The events in the plan and its roll-ups are
sent as spans; the run folder stores every event.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_mlperf import names
from otel_mlperf.kineto.spans.event_attributes import constant_attributes, numbers, span_category
from otel_mlperf.kineto.spans.rollups import OTHERS, roll_up_numbers
from otel_mlperf.kineto.spans.trace_assignment import roll_up_ids, span_ids
from otel_mlperf.kineto.trace_events import NONE
from otel_mlperf.otlp.span_content import (
    OwnFields,
    SpanLink,
    link_blocks,
    shared_attributes,
    span_extra,
    span_tail,
)
from otel_mlperf.otlp.span_encoding import SpanColumns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from otel_mlperf.kineto.counting.replayed_graphs import ReplayedGraphs
    from otel_mlperf.kineto.linking.linked_events import Links
    from otel_mlperf.kineto.spans.budget import SpanPlan
    from otel_mlperf.kineto.spans.trace_assignment import Assignment
    from otel_mlperf.kineto.trace_events import Trace

NO_THREAD: Final = -1
_NATIVE_ID = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True)
class Spans:
    """Events of a trace as spans, and the plan that selects the spans to send."""

    trace: Trace
    links: Links
    places: Assignment
    plan: SpanPlan
    own: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Attributes of single events by row, in addition to constant and numeric attributes."""
    problem: str = ""
    """Reason why events are missing, an attribute of all spans; empty if none are missing."""
    replayed: ReplayedGraphs | None = None
    """Operators of replayed CUDA graphs; None if no trace of their capture was given."""

    @cached_property
    def ids(self) -> NDArray[np.uint64]:
        """Span id of each event."""
        return span_ids(self.trace.digest, self.trace.events.position)

    @cached_property
    def parents(self) -> NDArray[np.uint64]:
        """Span id of each event's parent; 0 if it has no parent."""
        above = self.places.forest.parent
        anchors = self.places.anchor_span[self.places.anchor]
        return np.where(above == NONE, anchors, self.ids[above])

    @cached_property
    def trace_ids(self) -> NDArray[np.uint8]:
        """Trace ids as bytes, with shape (number of traces, 16)."""
        return np.frombuffer(b"".join(self.places.traces), np.uint8).reshape(-1, 16)

    @cached_property
    def threads(self) -> NDArray[np.int64]:
        """Native thread id of each track; NO_THREAD if the track's ``tid`` is not a number."""
        tids = (
            track.tid if _NATIVE_ID.fullmatch(track.tid) else NO_THREAD
            for track in self.trace.tracks
        )
        return np.array([int(tid) for tid in tids], np.int64)

    def kept(self) -> Iterator[SpanColumns]:
        """Yield the kept events as columns, grouped by the numeric attributes that they have."""
        rows = np.flatnonzero(self.plan.kept)
        for part, ints in self.by_numbers(rows):
            yield self._columns(part, ints)

    def by_numbers(
        self, rows: NDArray[np.intp]
    ) -> Iterator[tuple[NDArray[np.intp], dict[str, NDArray[np.int64]]]]:
        """Yield groups of ``rows`` that have the same numeric attributes, and these attributes."""
        known = numbers(self.trace)
        # The encoder writes the same fields for all rows of a group, so that rows that lack a
        # number need a group of their own: a missing value must not become 0.
        mask = np.zeros(len(rows), np.int64)
        for bit, column in enumerate(known.values()):
            mask |= (column[rows] != NONE).astype(np.int64) << bit
        for present in np.unique(mask).tolist():
            part = rows[mask == present]
            yield (
                part,
                {
                    key: column[part].astype(np.int64)
                    for bit, (key, column) in enumerate(known.items())
                    if present >> bit & 1
                },
            )

    def _columns(self, rows: NDArray[np.intp], ints: dict[str, NDArray[np.int64]]) -> SpanColumns:
        events = self.trace.events
        known, tail = self.tails(rows)
        # The wire format is unsigned: a time before 1970, which only other tools write, becomes 0.
        start = np.maximum(events.start_ns[rows], 0)
        return SpanColumns(
            trace_id=self.trace_ids[self.places.trace[rows]],
            span_id=self.ids[rows],
            parent_id=self.parents[rows],
            start_ns=start.astype(np.uint64),
            end_ns=(start + events.duration_ns[rows]).astype(np.uint64),
            tail=tail,
            tails=[self._tail(row) for row in known.tolist()],
            extra=self._extra(rows),
            ints=ints,
        )

    def _extra(self, rows: NDArray[np.intp]) -> dict[int, bytes]:
        """Return the encoded links and own attributes of single spans, by position in ``rows``."""
        linked = np.flatnonzero(self.has_link[rows])
        forward = self.links.forward[rows[linked]]
        # Encoded in one call, because every operator of a backward pass has a link.
        blocks = link_blocks(self.trace_ids[self.places.trace[forward]], self.ids[forward])
        extra = dict(zip(linked.tolist(), blocks, strict=True))
        apart = self.launched_apart
        if not (self.own or apart.any()):
            return extra
        for place, row in enumerate(rows.tolist()):
            if own := self.own.get(row, {}) | self.launch_of(row):
                extra[place] = span_extra(OwnFields(own)) + extra.get(place, b"")
        return extra

    @cached_property
    def has_link(self) -> NDArray[np.bool_]:
        """Whether each event has a link: a backward operator is linked to its forward operator.

        A sent event has no link to an event that is not sent, because servers lack that event.
        """
        forward, kept = self.links.forward, self.plan.kept
        linked: NDArray[np.bool_] = (forward != NONE) & (kept[forward] | ~kept)
        return linked

    @cached_property
    def launched_apart(self) -> NDArray[np.bool_]:
        """Whether each event's call is known from an arrow only, not from its correlation."""
        launch, correlation = self.links.launch, self.trace.events.correlation
        has_other = (correlation <= 0) | (correlation != correlation[launch])
        apart: NDArray[np.bool_] = has_other & (launch != NONE)
        return apart

    def launch_of(self, row: int) -> dict[str, Any]:
        """Return the attribute with the span id of the call; {} if ``launched_apart`` is false."""
        if not self.launched_apart[row]:
            return {}
        return {names.LAUNCH: f"{int(self.ids[self.links.launch[row]]):016x}"}

    def tails(self, rows: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.int32]]:
        """Return a row for each distinct set of constant attributes, and the set's index by row."""
        events = self.trace.events
        key = events.name[rows].astype(np.int64)
        for column, width in (
            (events.category, 256),
            (events.track, len(self.trace.tracks)),
            (self.places.trace, len(self.places.traces)),
        ):
            key = key * width + column[rows]
        if self.replayed is not None:
            key = key * (len(self.replayed.operators) + 1) + self.replayed.operator[rows] + 1
        # Each combination is encoded once, because thousands of spans share a few dozen tails.
        _, first, index = np.unique(key, return_index=True, return_inverse=True)
        return rows[first], index.reshape(-1).astype(np.int32)

    def constant(self, row: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return an event's constant attributes: columns of table ``spans``, and all others."""
        trace = self.trace
        track = trace.tracks[trace.events.track[row]]
        category = trace.categories[trace.events.category[row]]
        is_device = bool(self.links.is_device[row])
        thread = int(self.threads[trace.events.track[row]])
        is_thread = thread != NO_THREAD and not is_device
        shared = shared_attributes(
            {
                "category": span_category(category, is_device=is_device),
                "phase": self.places.phases[self.places.trace[row]],
                "thread_id": thread if is_thread else None,
                "thread": track.thread,
            }
        )
        name = trace.names[trace.events.name[row]]
        others = constant_attributes(name, category, self.problem, is_device=is_device)
        if self.replayed is not None and (operator := int(self.replayed.operator[row])) != NONE:
            others[names.CAPTURED_OPERATOR] = self.replayed.operators[operator]
        return shared, others

    def _tail(self, row: int) -> bytes:
        shared, others = self.constant(row)
        return span_tail(self.trace.names[self.trace.events.name[row]], shared | others)

    def links_of(self, row: int) -> list[SpanLink]:
        """Return the links of an event; empty if it has none."""
        if not self.has_link[row]:
            return []
        forward = int(self.links.forward[row])
        return [SpanLink(self.places.traces[self.places.trace[forward]], int(self.ids[forward]))]

    def roll_ups(self) -> SpanColumns:
        """Return the roll-up spans as columns."""
        roll_ups = self.plan.roll_ups
        start = np.maximum(roll_ups.start_ns, 0)
        known, tail = self.described
        return SpanColumns(
            trace_id=self.trace_ids[self.places.anchor_trace[roll_ups.anchor]],
            span_id=self.roll_up_ids,
            parent_id=self.above_roll_ups,
            start_ns=start.astype(np.uint64),
            end_ns=np.maximum(roll_ups.end_ns, start).astype(np.uint64),
            tail=tail,
            tails=[span_tail(name, attributes) for name, attributes in known],
            ints=roll_up_numbers(roll_ups),
        )

    @cached_property
    def roll_up_ids(self) -> NDArray[np.uint64]:
        """Span id of each roll-up."""
        first = self.trace.events.position[self.plan.roll_ups.first]
        return roll_up_ids(self.trace.digest, first)

    @cached_property
    def above_roll_ups(self) -> NDArray[np.uint64]:
        """Span id of each roll-up's parent; 0 if it has no parent."""
        roll_ups = self.plan.roll_ups
        anchors = self.places.anchor_span[roll_ups.anchor]
        return np.where(roll_ups.above == NONE, anchors, self.ids[roll_ups.above])

    @cached_property
    def described(self) -> tuple[list[tuple[str, dict[str, Any]]], NDArray[np.int32]]:
        """Distinct pairs of name and constant attributes, and the index of each roll-up's pair."""
        roll_ups = self.plan.roll_ups
        trace = self.places.anchor_trace[roll_ups.anchor].astype(np.int64)
        key = (roll_ups.name.astype(np.int64) + 1) * 256 + roll_ups.category
        key = (key * len(self.places.traces) + trace) * 2 + self.links.is_device[roll_ups.first]
        _, first, index = np.unique(key, return_index=True, return_inverse=True)
        known = [self._roll_up(place) for place in first.tolist()]
        return known, index.reshape(-1).astype(np.int32)

    def _roll_up(self, place: int) -> tuple[str, dict[str, Any]]:
        roll_ups, trace = self.plan.roll_ups, self.trace
        category = trace.categories[roll_ups.category[place]]
        is_device = bool(self.links.is_device[roll_ups.first[place]])
        attributes = shared_attributes(
            {
                "category": span_category(category, is_device=is_device),
                "phase": self.places.phases[self.places.anchor_trace[roll_ups.anchor[place]]],
                "thread_id": None,
            }
        )
        attributes |= constant_attributes("", category, self.problem, is_device=is_device)
        name = int(roll_ups.name[place])
        return (names.OTHER if name == OTHERS else trace.names[name]), attributes
