"""What is written with a step that has ended: what its batches hold, time left out, epoch, work?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_mlperf import names

if TYPE_CHECKING:
    from otel_mlperf.journal.journal_writer import Journal, Pieces

Added = tuple["int | None", "int | None", int, "int | None", "int | None", "int | None"]
"""What is added up in a step: samples, tokens, time left out, epoch, operations, elements."""


class StepPayload:
    """The payloads of the steps of one journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._last: tuple[Added | None, Pieces | None] = (None, None)
        """What the step before had added up, and its text."""

    def pieces_of(self, added: Added) -> Pieces | None:
        """The text of a step's payload, mostly that of the one before; None: it has none."""
        # One comparison instead of an encoding, 4 µs: batches are mostly of one size.
        if added != self._last[0]:
            content = payload_of(*added)
            pieces = self._journal.pieces(content) if content else ()
            self._last = added, (pieces or None) if content else ()
        return self._last[1]


def payload_of(
    samples: int | None,
    tokens: int | None,
    excluded: int,
    epoch: int | None,
    flops: int | None,
    elements: int | None,
) -> dict[str, Any]:
    """What was added up in a step, as its payload."""
    counts = {"n": samples, "t": tokens, "x": excluded or None, "m": elements}
    content: dict[str, Any] = {key: value for key, value in counts.items() if value is not None}
    if flops is not None and flops >= 0:
        content["f"] = flops
    if epoch is not None:
        content["a"] = {names.TRAINING_EPOCH: epoch}
    return content
