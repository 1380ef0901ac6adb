"""Finding of steps that wait for copies from the host to the device.

Profiler windows are used if they exist: the copy time in which the device did nothing else.
Otherwise the sections of transfers are used: a call that only starts a copy is short. If both are
missing, the sampled lines of the loop are used: ``Tensor.to`` and ``Tensor.cuda`` are no sections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.analysis.findings.sampled_lines import find_copying_lines
from otel_mlperf.findings.finding import Finding, Gain, Where
from otel_mlperf.findings.finding_table import row_of

if TYPE_CHECKING:
    from otel_mlperf.analysis.findings.run_numbers import RunNumbers

_DEVICES: Final = """SELECT sum(window_ns), sum(copy_ns), sum(exposed_copy_ns) FROM streams
    WHERE stream IS NULL"""
_COPIES: Final = """SELECT sum(total_ns), sum(total_ns) FILTER (direction = 'H2D'),
    sum(total_ns) FILTER (direction = 'H2D' AND pageable) FROM copies WHERE direction <> 'set'"""
_PAGEABLE: Final = "from memory that is not pinned"
_PINNED: Final = "sequentially with the computation"


def find_transfers(numbers: RunNumbers) -> list[Finding]:
    """Return one finding if exposed copies to the device exceed the row's share of a step."""
    summary = numbers.summary
    if summary.steps is None:
        return []
    found = _by_windows(numbers) or _by_sections(numbers)
    is_named = any(row.category == names.TRANSFER for row in summary.steps.rows)
    return found if found or is_named else find_copying_lines(numbers)


def _by_windows(numbers: RunNumbers) -> list[Finding]:
    ((window_ns, copy_ns, exposed_ns),) = numbers.store.rows(_DEVICES)
    ((total_ns, to_device_ns, pageable_ns),) = numbers.store.rows(_COPIES)
    if not window_ns or not copy_ns or not to_device_ns:
        return []
    # The direction of exposed copies is unknown: assume the same ratio for each direction.
    share = exposed_ns / window_ns * to_device_ns / total_ns
    pageable = (pageable_ns or 0) / to_device_ns
    evidence = {"share": share, "copy_ns": copy_ns, "exposed_ns": exposed_ns, "pageable": pageable}
    evidence["window_ns"] = window_ns
    how, command = _PAGEABLE if pageable > 1 / 2 else _PINNED, "otel-mlperf kernels"
    return _finding(share, how, evidence, "", f"{command} {numbers.summary.short_id}")


def _by_sections(numbers: RunNumbers) -> list[Finding]:
    steps = numbers.summary.steps
    rows = [row for row in steps.rows if row.category == names.TRANSFER] if steps else []
    share = sum(row.share for row in rows if not row.beside)
    evidence = {"share": share, "transfer_ns": sum(row.mean_ns for row in rows if not row.beside)}
    command = f"otel-mlperf show {numbers.summary.short_id}"
    return _finding(share, _PINNED, evidence, rows[0].name if rows else "", command)


def _finding(
    share: float, how: str, evidence: dict[str, float], section: str, command: str
) -> list[Finding]:
    row = row_of("transfer")
    if not row.holds(share):
        return []
    return [
        Finding(
            id=row.id,
            severity=row.severity,
            summary=row.summary.format(value=share, how=how),
            action=row.action,
            evidence=evidence,
            where=Where(section=section),
            # Concurrent copies cost nothing, but copies longer than the work still do.
            gain=Gain(low=share / 2, high=share),
            command=command,
        )
    ]
