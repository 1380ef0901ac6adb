"""When did a device stop answering, and when did it come back?

Each is a moment in the run's trace: a span without length, below the run's own. It is an item of
the accounts like every span. Its id follows from what was read, so a replay makes the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names
from otel_mlperf.agent.model.kept_span import Kept, made_id

if TYPE_CHECKING:
    from otel_mlperf.agent.model.agent_state import AgentState
    from otel_mlperf.agent.model.events import Read, SensorReading
    from otel_mlperf.agent.model.journal_state import JournalState

_NAMES: Final = {-1: names.SPAN_DEVICE_LOST, -2: names.SPAN_DEVICE_BACK}
"""By numbers that no process gives: those of its own names are positive."""
_TRACK: Final = 0
_THREAD: Final = ["track", _TRACK, -1, "devices", False]


def device_spans(state: AgentState, read: Read) -> list[tuple[JournalState, Kept]]:
    """Spans of the devices that are gone, or there again, since the source was read before.

    Of a device that no rank uses they are in the trace of the node's first rank.
    """
    spans = []
    for reading in read.readings:
        device = reading.labels.get(names.HW_ID, "")
        if reading.name != names.DEVICE_LOST.name or bool(reading.text) == (device in state.gone):
            continue
        journal = state.journals.get(reading.journal) or _first(state)
        if journal is None:
            continue
        if reading.text:
            state.gone[device] = reading.text
        else:
            del state.gone[device]
        spans.append((journal, _span(journal, reading, read.unix_ns)))
    return spans


def _first(state: AgentState) -> JournalState | None:
    own = [journal for journal in state.journals.values() if not journal.meta.is_child]
    return min(own, key=lambda journal: journal.meta.rank, default=None)


def _span(journal: JournalState, reading: SensorReading, unix_ns: int) -> Kept:
    number = -1 if reading.text else -2
    journal.entries[number] = ["section", _NAMES[number], names.DEVICE, "", {}]
    journal.tracks[_TRACK] = _THREAD
    meta = journal.meta
    at_ns = max(meta.monotonic_ns, unix_ns - meta.shift_ns)
    text = f"{meta.run_span:x}/{reading.labels[names.HW_ID]}/{number}/{unix_ns}"
    payload: dict[str, Any] = {"a": dict(reading.labels)}
    if reading.text:
        payload["e"] = [names.DEVICE_LOST_ERROR, reading.text, ""]
    return Kept(
        journal=journal,
        span=made_id(text),
        parent=meta.run_span,
        trace=journal.run_trace,
        start=at_ns,
        end=at_ns,
        name=number,
        track=_TRACK,
        root=meta.run_span,
        reason=names.DEVICE,
        error=bool(reading.text),
        payload=payload,
    )
