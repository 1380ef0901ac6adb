"""How does a kept section look in the store's table and on the wire?"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from otel_mlperf import names
from otel_mlperf.otlp.span_columns import SpanColumns
from otel_mlperf.otlp.span_content import (
    EXCEPTION,
    SpanLink,
    exception_events,
    shared_attributes,
    span_extra,
    span_tail,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mlperf.agent.model.journal_state import JournalState


@dataclass(slots=True)
class Kept:
    """One span that goes to the store and to the server; times are monotonic."""

    journal: JournalState
    span: int
    parent: int
    trace: bytes
    start: int
    end: int
    name: int
    track: int
    root: int
    reason: str
    error: bool = False
    interrupted: bool = False
    payload: dict[str, Any] = field(default_factory=dict)
    n: int | None = None
    number: int | None = None
    epoch: int | None = None
    links: list[tuple[bytes, int]] = field(default_factory=list)
    kind: str = "section"
    rolled_up: int = 0
    """How many items a roll-up stands for; 0 for a section."""

    @property
    def entry(self) -> tuple[str, str, str, dict[str, Any]]:
        """Name, category, phase and constant attributes."""
        _, name, category, phase, constant = self.journal.section(self.name)
        return name, category, phase, constant

    def unix(self, monotonic_ns: int) -> int:
        """Unix time, by the one anchor of the process."""
        return self.journal.meta.unix_time(monotonic_ns)

    @property
    def thread(self) -> tuple[int, str]:
        """Native id and name of the thread, or task, that it ran in; -1 if not known."""
        return self.journal.thread(self.track)

    def attributes(self) -> dict[str, Any]:
        """What is its own: given in the call, errors, the step's number, why it was kept."""
        own = dict(self.payload.get("a") or {})
        if self.n is not None and self.span == self.root:
            own[names.TRAINING_STEP] = self.number
            own[names.KEPT] = self.reason
            for key, name in (("n", names.BATCH_SIZE), ("t", names.BATCH_TOKENS)):
                if self.payload.get(key) is not None:
                    own[name] = self.payload[key]
        if self.error_words:
            own[names.ERROR_TYPE] = self.error_words[0]
        if self.interrupted:
            own[names.INTERRUPTED] = True
        return own

    @property
    def error_words(self) -> list[str]:
        """Type, message and stack of the exception that crossed it; empty without one."""
        return self.payload.get("e") or (["error", "", ""] if self.error else [])


def trace_hex(kept: Kept) -> str:
    """The trace id as the servers show it."""
    return kept.trace.hex()


def span_hex(span: int) -> str:
    """A span id as the servers show it; empty for no span."""
    return f"{span:016x}" if span else ""


def span_table(spans: Sequence[Kept]) -> dict[str, list[Any]]:
    """The columns of table ``spans``."""
    rows = [_table_row(kept) for kept in spans]
    return {key: [row[key] for row in rows] for key in rows[0]} if rows else {}


def _table_row(kept: Kept) -> dict[str, Any]:
    meta, (name, category, phase, constant) = kept.journal.meta, kept.entry
    attributes = constant | kept.attributes()
    if kept.error_words:
        attributes |= dict(zip(EXCEPTION, kept.error_words, strict=False))
    return {
        "rank": meta.rank,
        "restart": meta.restart,
        "trace_id": trace_hex(kept),
        "span_id": span_hex(kept.span),
        "parent_id": span_hex(kept.parent),
        "name": name,
        "category": category,
        "phase": phase,
        "track": kept.track & _INT64_MOST,
        "thread": kept.thread[1],
        "thread_id": kept.thread[0] if kept.thread[0] >= 0 else None,
        "start_ns": kept.unix(kept.start),
        "end_ns": kept.unix(kept.end),
        "status": "error" if kept.error or kept.interrupted else "unset",
        "interrupted": kept.interrupted,
        "root_id": span_hex(kept.root),
        "n": kept.n,
        "number": kept.number,
        "epoch": kept.epoch,
        "kept": kept.reason,
        "attributes": json.dumps(attributes, default=str, ensure_ascii=False),
        "links": json.dumps([[trace.hex(), span_hex(span)] for trace, span in kept.links]),
        "kind": kept.kind,
    }


_INT64_MOST = (1 << 63) - 1


def span_columns(spans: Sequence[Kept]) -> SpanColumns:
    """The same spans as columns for the encoder; all of one rank."""
    tails: dict[tuple[int, int, int], int] = {}
    encoded: list[bytes] = []
    tail = []
    for kept in spans:
        key = (id(kept.journal), kept.name, kept.track)
        if key not in tails:
            tails[key] = len(encoded)
            encoded.append(_tail(kept))
        tail.append(tails[key])
    extra = {i: more for i, kept in enumerate(spans) if (more := _extra(kept))}
    return SpanColumns(
        trace_id=np.frombuffer(b"".join(k.trace for k in spans), np.uint8).reshape(-1, 16),
        span_id=np.array([k.span for k in spans], np.uint64),
        parent_id=np.array([k.parent for k in spans], np.uint64),
        start_ns=np.array([k.unix(k.start) for k in spans], np.uint64),
        end_ns=np.array([k.unix(k.end) for k in spans], np.uint64),
        tail=np.array(tail, np.int32),
        tails=encoded,
        extra=extra,
    )


def _tail(kept: Kept) -> bytes:
    name, category, phase, constant = kept.entry
    native, thread = kept.thread
    about = {
        "category": category,
        "phase": phase,
        "thread_id": native if native >= 0 else None,
        "thread": thread,
    }
    return span_tail(name, shared_attributes(about) | constant)


def _extra(kept: Kept) -> bytes:
    attributes = kept.attributes()
    if not (attributes or kept.links or kept.error or kept.interrupted or kept.rolled_up):
        return b""
    words = kept.error_words
    events = exception_events(kept.unix(kept.end), dict(zip(EXCEPTION, words, strict=False)))
    error = names.INTERRUPTED_WORDS if kept.interrupted else words[1] if words else None
    links = [SpanLink(trace, span) for trace, span in kept.links]
    return span_extra(attributes, links, events, error)
