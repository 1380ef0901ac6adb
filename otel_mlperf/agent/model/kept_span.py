"""What is known of a section that is kept as a span?"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal

from otel_mlperf import names

if TYPE_CHECKING:
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
    gpu: dict[str, Any] = field(default_factory=dict)
    """Attributes that tell of its time on a GPU."""
    links: list[tuple[bytes, int]] = field(default_factory=list)
    """Those of the agent: a step's to what its run's trace has around it."""
    marks: list[tuple[int, str, str, int]] = field(default_factory=list)
    """Of a run what the program marked in it: Unix time, name, phase and step."""
    marks_left_out: int = 0
    kind: Literal["section", "rollup", "segment"] = "section"
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
        used = zip(names.MEASURES, self.payload.get("u") or (), strict=False)
        own |= {measure.attribute: figure for measure, figure in used if figure is not None}
        own |= self.gpu
        # Of the step's own span alone: what is inside it finds them there.
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
        if self.error_words:
            own[names.ERROR_TYPE] = self.error_words[0]
        if self.interrupted:
            own[names.INTERRUPTED] = True
        return own

    def all_links(self) -> list[tuple[bytes, int]]:
        """Trace and span of what it is linked to: by the agent, and by the program itself."""
        said = self.payload.get("l") or ()
        own = [((high << 64 | low).to_bytes(16, "big"), span) for high, low, span in said]
        return [*self.links, *own]

    @property
    def error_words(self) -> list[str]:
        """Type, message and stack of the exception that crossed it; empty without one."""
        return self.payload.get("e") or (["error", "", ""] if self.error else [])


def made_id(text: str) -> int:
    """The id of a span that the agent makes itself: it follows from ``text``.

    An agent that replays makes the same; 0 is the id of no span.
    """
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") or 1
