"""Was a program of PyTorch recorded in which no step was found, and what of its loop was seen?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.analysis.run.run_processes import FINISHED
from otel_mlperf.findings.finding import Finding
from otel_mlperf.findings.finding_table import row_of

if TYPE_CHECKING:
    from otel_mlperf.analysis.findings.run_numbers import RunNumbers

_TORCH: Final = "torch"
"""The integration that infers steps, switched on when the program has imported torch."""
_PARTS: Final = {
    names.FORWARD: "forward",
    names.BACKWARD: "backward",
    names.OPTIMIZER: "optimizer step",
}
"""What a turn of a loop is known by, and how it is called here."""


def find_unseen_steps(numbers: RunNumbers) -> list[Finding]:
    """One finding, if torch was there, somebody else had to find the steps, and there are none."""
    summary, row = numbers.summary, row_of("unseen_steps")
    if summary.steps is not None or _TORCH not in summary.integrations:
        return []
    calls = _count_calls(numbers)
    # One that was stopped, or goes on, may not have come to its first update yet.
    if summary.outcome != FINISHED and not row.holds(calls[names.BACKWARD]):
        return []
    is_training = calls[names.BACKWARD] or calls[names.OPTIMIZER]
    seen = ", ".join(_told(calls[name], word) for name, word in _PARTS.items())
    return [
        Finding(
            id=row.id,
            severity=row.severity if is_training else "info",
            summary=row.summary.format(seen=seen),
            action=row.action,
            evidence={name: float(count) for name, count in calls.items()},
        )
    ]


def _count_calls(numbers: RunNumbers) -> dict[str, int]:
    """How often each part was seen, on a rank; what a validation holds is no part of a step."""
    rows = numbers.store.rows(
        "SELECT name, sum(count) FROM sections WHERE list_contains($parts, name) "
        "AND NOT list_contains(string_split(path, '/'), $validation) GROUP BY name",
        parts=[*_PARTS],
        validation=names.VALIDATE,
    )
    counted = {name: round(int(count) / numbers.summary.ranks) for name, count in rows}
    return {name: counted.get(name, 0) for name in _PARTS}


def _told(count: int, word: str) -> str:
    if not count:
        return f"no {word}"
    return f"{count:,} {word}{'s' if ' ' in word and count > 1 else ''}"
