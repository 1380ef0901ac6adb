"""Sampled spans: the form of a section from which stored and sent spans are encoded."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, Literal

from otel_mlperf import names
from otel_mlperf.otlp import wire
from otel_mlperf.otlp.span_limits import describe_error

if TYPE_CHECKING:
    from otel_mlperf.agent.model.journal_state import JournalState

_HAS_REMOTE: Final = 0x100
"""OTLP link flag: set if it is known whether the link's target is remote."""


@dataclass(slots=True)
class SampledSpan:
    """Sampled span for the run folder and the destinations; its times are monotonic, in ns."""

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
    gpu: dict[str, Any] = field(default_factory=dict)
    """Attributes of the GPU time."""
    links: list[tuple[bytes, int]] = field(default_factory=list)
    """Links that the agent adds: from a step to its enclosing section in the run's trace."""
    marks: list[tuple[int, str, str, int]] = field(default_factory=list)
    """For the run's span: marks of the program, each with Unix time, name, phase and step."""
    marks_left_out: int = 0
    kind: Literal["section", "rollup", "segment"] = "section"
    rolled_up: int = 0
    """Number of items that a roll-up replaces; 0 for a section."""

    @property
    def entry(self) -> tuple[str, str, str, dict[str, Any]]:
        """Return name, category, phase and constant attributes."""
        _, name, category, phase, constant = self.journal.section(self.name)
        return name, category, phase, constant

    def unix(self, monotonic_ns: int) -> int:
        """Convert monotonic to Unix time, with the single clock anchor of the process."""
        return self.journal.meta.unix_time(monotonic_ns)

    @property
    def thread(self) -> tuple[int, str]:
        """Return native id and name of the thread or task in which it ran; -1 and "" if unknown."""
        return self.journal.thread(self.track)

    def attributes(self) -> dict[str, Any]:
        """Return the span's attributes: from the call, resource use, GPU time, step, and error."""
        own = dict(self.payload.get("a") or {})
        used = zip(names.MEASURES, self.payload.get("u") or (), strict=False)
        own |= {measure.attribute: figure for measure, figure in used if figure is not None}
        own |= self.gpu
        # Step attributes are only on the step's own span, not on the spans inside the step.
        if self.n is not None and self.span == self.root:
            own[names.TRAINING_STEP] = self.number
            own[names.KEPT] = self.reason
            given = {
                "n": names.BATCH_SIZE,
                "t": names.BATCH_TOKENS,
                "f": names.STEP_FLOPS,
                "x": names.STEP_OUTSIDE,
            }
            for key, name in given.items():
                if self.payload.get(key) is not None:
                    own[name] = self.payload[key]
        if self.exception_texts and self.status == "error":
            own.setdefault(names.ERROR_TYPE, self.exception_texts[0])
        if self.interrupted:
            own[names.INTERRUPTED] = True
        return own

    def all_links(self) -> list[tuple[bytes, int, dict[str, Any], int]]:
        """Return trace, span, attributes and OTLP flags of each link.

        The agent's links come first, then the program's.
        """
        recorded = self.payload.get("l") or ()
        given = [
            ((high << 64 | low).to_bytes(16, "big"), span, attributes, flags | _HAS_REMOTE)
            for high, low, span, flags, attributes in recorded
        ]
        return [*((trace, span, {}, wire.LOCAL) for trace, span in self.links), *given]

    @property
    def exception_texts(self) -> list[str]:
        """Return type, message and stack of the exception that left the section; [] without one."""
        return self.payload.get("e") or []

    @property
    def status(self) -> Literal["unset", "ok", "error"]:
        """Return ``error`` after a failure or interruption, else ``ok`` if it was set."""
        if self.error or self.interrupted:
            return "error"
        return "ok" if self.payload.get("s") else "unset"

    @property
    def status_description(self) -> str:
        """Return the interruption text, the description set by the program, or the error."""
        if self.interrupted:
            return names.INTERRUPTED_MESSAGE
        if set_status := self.payload.get("s"):
            return str(set_status[1])
        return describe_error(self.exception_texts) if self.exception_texts else ""

    @property
    def stored_description(self) -> str:
        """Return the status description, or "" if it can be derived from the exception."""
        derived = describe_error(self.exception_texts) if self.exception_texts else ""
        return "" if self.status_description == derived else self.status_description

    @property
    def events(self) -> list[tuple[int, str, dict[str, Any]]]:
        """Return Unix time, name and attributes of each recorded span event."""
        return [(self.unix(at), name, more) for at, name, more in self.payload.get("v") or ()]

    @property
    def is_parent_remote(self) -> bool:
        """Return whether its parent is a span of another process."""
        return bool(self.payload.get("r"))

    @property
    def trace_state(self) -> str:
        """Return the tracestate of its foreign trace; empty in traces of this run."""
        root = self.journal.roots.get(self.root)
        return root.trace_state if root is not None else ""

    @property
    def caller_flags(self) -> int | None:
        """Return the trace flags of the remote caller (1: sampled); None in this run's traces."""
        root = self.journal.roots.get(self.root)
        return None if root is None or root.kind != "foreign" else int(not root.is_unsampled)

    @property
    def dropped_links(self) -> int:
        """Return the number of links dropped by the limit."""
        return int(self.payload.get("k") or 0)

    @property
    def is_unsampled(self) -> bool:
        """Return whether its trace is foreign and was not sampled by the caller."""
        return self.caller_flags == 0

    @property
    def dropped_events(self) -> int:
        """Return the number of events dropped by the limit."""
        return int(self.payload.get("w") or 0)


def made_id(text: str) -> int:
    """Return a span id derived from ``text``, for a span that the agent creates.

    A replay derives the same id. The id is never 0, which is invalid in OpenTelemetry.
    """
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") or 1
