"""Spans that the agent creates: segments of long open sections, and device losses.

A section that is open for hours gets a finished child span every ten minutes, a *segment*. The
section itself is sent once, when it ends. A device that is lost, or that responds again, gets a
*device span* of zero length below the run's span. The ids of segments and device spans are derived
from the events, so that a replay sends the same spans. The accounts count only the device spans.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_mlperf import names
from otel_mlperf.agent.model.kept_span import SampledSpan, made_id
from otel_mlperf.journal.journal_reader import OPEN_TYPE

if TYPE_CHECKING:
    from otel_mlperf.agent.model.agent_state import AgentState
    from otel_mlperf.agent.model.events import Read, SensorReading
    from otel_mlperf.agent.model.journal_state import JournalState

SEGMENT_NS: Final = 600 * 10**9
_NAMES: Final = {-1: names.SPAN_DEVICE_LOST, -2: names.SPAN_DEVICE_BACK}
"""Span names by entry number. The numbers are negative, because processes use only positive
ones."""
_TRACK: Final = 0
_THREAD: Final = ["track", _TRACK, -1, "devices", False]


def segment_spans(journal: JournalState, now_ns: int) -> list[SampledSpan]:
    """For open sections, return unsent segments that end by ``now_ns`` (monotonic)."""
    if journal.left:
        return []
    table = np.frombuffer(journal.open, OPEN_TYPE)
    long_open = table[table["start"] + np.uint64(SEGMENT_NS) <= np.uint64(now_ns)]
    # A stale entry belongs to a section that has ended: its row was already read.
    still = {int(span) for span in long_open["span"]} - set(journal.stale)
    journal.segments = {span: sent for span, sent in journal.segments.items() if span in still}
    made = []
    for row in long_open:
        span, start = int(row["span"]), int(row["start"])
        if span not in still:
            continue
        first, due = journal.segments.get(span, 0), (now_ns - start) // SEGMENT_NS
        fields = (int(row["root"]), int(row["name"]), int(row["track"]))
        made += [_segment(journal, span, start, k, *fields) for k in range(first, due)]
        journal.segments[span] = due
    return made


def _segment(
    journal: JournalState, span: int, start: int, k: int, root: int, name: int, track: int
) -> SampledSpan:
    return SampledSpan(
        journal=journal,
        span=made_id(f"{span:x}/{k}"),
        parent=span,
        trace=journal.trace_of(root),
        start=start + k * SEGMENT_NS,
        end=start + (k + 1) * SEGMENT_NS,
        name=name,
        track=track,
        root=root,
        reason=names.SPAN_SEGMENT,
        kind="segment",
        payload={"a": {names.SEGMENT_OF: journal.section(name)[1]}},
    )


def device_spans(state: AgentState, read: Read) -> list[tuple[JournalState, SampledSpan]]:
    """Return a span for each device that was lost or responded again since the previous reading.

    Each span comes with a journal, to whose trace the span belongs: the journal of the rank that
    uses the device, or else of the node's first rank.
    """
    spans = []
    for reading in read.readings:
        device = reading.labels.get(names.HW_ID, "")
        if reading.name != names.DEVICE_LOST.name or bool(reading.text) == (device in state.gone):
            continue
        journal = state.journals.get(reading.journal) or first_rank(state)
        if journal is None:
            continue
        # Stored in the state, so that a restarted agent does not report a known loss again.
        if reading.text:
            state.gone[device] = reading.text
        else:
            del state.gone[device]
        spans.append((journal, _device_span(journal, reading, read.unix_ns)))
    return spans


def first_rank(state: AgentState) -> JournalState | None:
    """Return the main journal of the node's lowest rank, or None if no journal is being read."""
    own = [journal for journal in state.journals.values() if not journal.meta.is_child]
    return min(own, key=lambda journal: journal.meta.rank, default=None)


def _device_span(journal: JournalState, reading: SensorReading, unix_ns: int) -> SampledSpan:
    number = -1 if reading.text else -2
    text = f"{reading.labels[names.HW_ID]}/{number}/{unix_ns}"
    payload: dict[str, Any] = {"a": dict(reading.labels)}
    if reading.text:
        payload["e"] = [names.DEVICE_LOST_ERROR, reading.text, ""]
    return moment_span(journal, number, _NAMES[number], names.DEVICE, text, unix_ns, payload)


def moment_span(
    journal: JournalState,
    number: int,
    name: str,
    category: str,
    text: str,
    unix_ns: int,
    payload: dict[str, Any],
) -> SampledSpan:
    """Return a span of zero length below the run's span, and register its name in the journal.

    Args:
        journal: journal of the rank whose trace gets the span.
        number: negative entry number of the name.
        name: name of the span.
        category: category of the span, also used as sampling reason.
        text: text from which the span id is derived; unique in the run.
        unix_ns: Unix time of the span.
        payload: attributes and error, in the format of a journal's payload.
    """
    # Entries as if the process had registered them: the span is then encoded like any other.
    journal.entries[number] = ["section", name, category, "", {}]
    journal.tracks[_TRACK] = _THREAD
    meta = journal.meta
    at_ns = max(meta.monotonic_ns, unix_ns - meta.shift_ns)
    return SampledSpan(
        journal=journal,
        span=made_id(f"{meta.run_span:x}/{text}"),
        parent=meta.run_span,
        trace=journal.run_trace,
        start=at_ns,
        end=at_ns,
        name=number,
        track=_TRACK,
        root=meta.run_span,
        reason=category,
        error="e" in payload,
        payload=payload,
    )
