"""Did the steps wait for data, and what would be won if they did not?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.findings.finding import Finding, Gain, Where
from otel_mlperf.findings.finding_table import row_of

if TYPE_CHECKING:
    from otel_mlperf.analysis.findings.run_numbers import RunNumbers
    from otel_mlperf.analysis.summary.summary_shapes import MachineUse, Summary

_FEWEST: Final = 3
"""Steps from which on there is anything to say about a usual one."""
_FULL: Final = 0.9
"""Share of the CPUs from which on none is free for more workers."""
_CHEAPER: Final = (
    "The CPUs are busy, so more workers may not help: make loading a sample cheaper (decode or "
    "augment less, or once beforehand), or ask for more CPUs."
)


def find_data_loading(numbers: RunNumbers) -> list[Finding]:
    """One finding, if the steps of the main phase wait for more than the row's share of them."""
    summary, row = numbers.summary, row_of("data_loading")
    steps = summary.steps
    # With one or two steps the first one's start of the workers is all that there is to see.
    if steps is None or steps.count < _FEWEST:
        return []
    waits = [
        section
        for section in steps.rows
        if section.category == names.DATA_LOADING and not section.beside
    ]
    share = min(1.0, sum(section.share for section in waits))
    if not row.holds(share):
        return []
    is_full = _is_full(summary.machine)
    said = row.summary.format(value=share)
    if steps.phase != names.TRAIN:
        said = f"{steps.phase} steps wait for data for {share:.0%} of their time"
    return [
        Finding(
            id=row.id,
            severity=row.severity,
            summary=said,
            action=_CHEAPER if is_full else row.action,
            evidence={
                "share": share,
                "wait_ns": sum(section.mean_ns for section in waits),
                "step_ns": steps.mean_ns,
                "steps": steps.count,
            },
            where=Where(section=max(waits, key=lambda section: section.mean_ns).name),
            gain=_gain(share, is_full=is_full),
            command=_command(summary),
        )
    ]


def _gain(share: float, *, is_full: bool) -> Gain:
    """Between loading that merely goes on while the step computes, and no wait at all.

    One that is beside the other takes as long as the longer of the two: of the whole, the shorter
    one is won. Where no CPU is free nothing may come of it.
    """
    return Gain(low=0.0 if is_full else min(share, 1.0 - share), high=share)


def _is_full(machine: MachineUse | None) -> bool:
    return machine is not None and machine.cpu_share is not None and machine.cpu_share > _FULL


def _command(summary: Summary) -> str:
    slowest = summary.slowest
    if slowest is None or slowest.kept_number is None:
        return ""
    return f"otel-mlperf show {summary.short_id} --step {slowest.kept_number}"
