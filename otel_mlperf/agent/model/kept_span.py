"""Sampled spans, from which stored and sent spans are encoded."""

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
"""OTLP link flag: set if it is known whether the target of the link is remote."""


@dataclass(slots=True)
class SampledSpan:
    """Section, roll-up or segment to be stored and sent as a span. All times are monotonic ns."""

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
    """Links that the agent adds: trace id and span id of a step's enclosing section in the run's
    trace."""
    marks: list[tuple[int, str, str, int]] = field(default_factory=list)
    """For the run's span: marks set by the user's program, each with Unix time, name, phase and
    step number."""
    marks_left_out: int = 0
    kind: Literal["section", "rollup", "segment"] = "section"
    rolled_up: int = 0
    """Number of sections that a roll-up replaces; 0 for a section."""

    @property
    def entry(self) -> tuple[str, str, str, dict[str, Any]]:
        """Return name, category, phase and constant attributes of the section."""
        _, name, category, phase, constant = self.journal.section(self.name)
        return name, category, phase, constant

    def unix(self, monotonic_ns: int) -> int:
        """Convert monotonic ns to Unix time in ns, with the single clock anchor of the process."""
        return self.journal.meta.unix_time(monotonic_ns)

    @property
    def thread(self) -> tuple[int, str]:
        """Return native id and name of the section's thread or task; (-1, "") if unknown."""
        return self.journal.thread(self.track)

    def attributes(self) -> dict[str, Any]:
        """Return this span's attributes, without those that all spans of its name share."""
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
        """Return trace id, span id, attributes and OTLP flags of each link.

        Links added by the agent come first, then the links set by the user's program.
        """
        recorded = self.payload.get("l") or ()
        given = [
            ((high << 64 | low).to_bytes(16, "big"), span, attributes, flags | _HAS_REMOTE)
            for high, low, span, flags, attributes in recorded
        ]
        return [*((trace, span, {}, wire.LOCAL) for trace, span in self.links), *given]

    @property
    def exception_texts(self) -> list[str]:
        """Return type, message and stack of the exception that left the section; [] if none."""
        return self.payload.get("e") or []

    @property
    def status(self) -> Literal["unset", "ok", "error"]:
        """Return ``error`` if failed or interrupted, ``ok`` if the user set it, else ``unset``."""
        if self.error or self.interrupted:
            return "error"
        return "ok" if self.payload.get("s") else "unset"

    @property
    def status_description(self) -> str:
        """Return the interruption text, else the user's text, else the error text; "" if none."""
        if self.interrupted:
            return names.INTERRUPTED_MESSAGE
        if set_status := self.payload.get("s"):
            return str(set_status[1])
        return describe_error(self.exception_texts) if self.exception_texts else ""

    @property
    def stored_description(self) -> str:
        """Return the status description; "" if the description only repeats the exception."""
        derived = describe_error(self.exception_texts) if self.exception_texts else ""
        return "" if self.status_description == derived else self.status_description

    @property
    def events(self) -> list[tuple[int, str, dict[str, Any]]]:
        """Return Unix time, name and attributes of each span event that the user added."""
        return [(self.unix(at), name, more) for at, name, more in self.payload.get("v") or ()]

    @property
    def is_parent_remote(self) -> bool:
        """Return whether the parent is a span of a remote process."""
        return bool(self.payload.get("r"))

    @property
    def trace_state(self) -> str:
        """Return the tracestate of a trace that a remote caller started; "" for other traces."""
        root = self.journal.roots.get(self.root)
        return root.trace_state if root is not None else ""

    @property
    def caller_flags(self) -> int | None:
        """Return the trace flags of the remote caller (1: sampled); None if there is no caller."""
        root = self.journal.roots.get(self.root)
        return None if root is None or root.kind != "foreign" else int(not root.is_unsampled)

    @property
    def dropped_links(self) -> int:
        """Return the number of links dropped because of the limit of links per span."""
        return int(self.payload.get("k") or 0)

    @property
    def is_unsampled(self) -> bool:
        """Return whether a remote caller started the trace and did not sample it."""
        return self.caller_flags == 0

    @property
    def dropped_events(self) -> int:
        """Return the number of events dropped because of the limit of events per span."""
        return int(self.payload.get("w") or 0)


def made_id(text: str) -> int:
    """Return a span id, derived from ``text``, for a span that the agent creates.

    A replay derives the same id. The id is never 0, which is invalid in OpenTelemetry.
    """
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") or 1
