"""Findings of lines that block the main thread: output, results, waits, conversions.

A line is classified by the most frequent kind of its sampled calls. Calls are identified by name or
package (``line_causes``): a call very likely, but not certainly, does what the name suggests.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from otel_mlperf import names
from otel_mlperf.analysis.findings.gpu_busy import read_gpu_busy
from otel_mlperf.analysis.findings.line_causes import ITERATION, cause_of
from otel_mlperf.analysis.findings.run_numbers import once_a_run
from otel_mlperf.analysis.findings.stack_lines import lifted_stack_lines
from otel_mlperf.findings.finding import Finding, Gain, Where
from otel_mlperf.findings.finding_table import row_of

if TYPE_CHECKING:
    from otel_mlperf.analysis.findings.line_causes import Cause, Kind
    from otel_mlperf.analysis.findings.run_numbers import RunNumbers
    from otel_mlperf.analysis.findings.stack_lines import Line, StackLines

_MIN_STEPS: Final = 10
_PINNED: Final = "SELECT count(*) FROM instruments WHERE name = $name"
_KNOWN: Final = 0.1
"""Minimum share of a line's samples in calls of its kind; other samples are between calls."""
_MIN_SAVED: Final = 0.75
_MIN_SAVED_WITH_GPU: Final = 0.5
_LIKELY: Final = ", likely in {call} ({place})"
_WAITING: Final = ("sync_in_loop", "blocked_loop")
"""Kinds that may wait for the GPU, so that their gain is unknown without its utilization."""
_BLOCKED_IN: Final = "{doing}, most of that time in {call} ({place})"


@once_a_run
def find_sampled_lines(numbers: RunNumbers) -> list[Finding]:
    """Return at most one finding each for output, waits and conversions.

    Each is the finding of the rank that loses most.
    """
    kinds: tuple[Kind, ...] = ("sync_in_loop", "blocked_loop", "conversions")
    return [finding for kind in kinds for finding in _found(numbers, kind)]


@once_a_run
def find_copying_lines(numbers: RunNumbers) -> list[Finding]:
    """Return at most one finding of copies of unpinned batches, of the rank that waits most."""
    ((pinned,),) = numbers.store.rows(_PINNED, name=names.LOADER_PIN.name)
    return [] if pinned else _found(numbers, "transfer")


def _found(numbers: RunNumbers, kind: Kind) -> list[Finding]:
    steps = numbers.summary.steps
    if steps is None or steps.count < _MIN_STEPS:
        return []
    judged = [_judge(kind, rank, numbers) for rank in lifted_stack_lines(numbers)]
    known = [(share, finding) for share, finding in judged if finding is not None]
    return [max(known, key=lambda one: one[0])[1]] if known else []


def _judge(kind: Kind, rank: StackLines, numbers: RunNumbers) -> tuple[float, Finding | None]:
    row, has_gpu = row_of(kind), numbers.uses_gpu
    busy = read_gpu_busy(numbers).get(rank.rank) if has_gpu else 0.0
    causes = {line: line_cause(line, rank, has_gpu=has_gpu) for line in rank.calls}
    lines = [line for line, cause in causes.items() if cause is not None and cause.id == kind]
    share = rank.share(lines)
    # Uncertainty of a share of few samples: two standard errors.
    uncertainty = 2 * sqrt(share * (1 - share) / rank.total)
    # The awaited GPU work has to be done in any case: only GPU idle time can be saved.
    won = min(share, 1 - (busy or 0.0))
    if (busy is None and kind in _WAITING) or not row.holds(won - uncertainty / 2):
        return share, None
    most = max(lines, key=lambda line: rank.share([line]))
    cause = causes[most]
    assert cause is not None
    calls = rank.calls[most]
    named = [call for call in calls if cause_of(call, has_gpu=has_gpu) == cause]
    call = max(named, key=lambda one: calls[one])
    fields = {"value": share, "call": f"{call.name}()", "place": str(most), "doing": cause.doing}
    fields["how"] = _LIKELY.format(**fields)
    if kind == "blocked_loop":
        fields["doing"] = _BLOCKED_IN.format(**fields)
    gain = _gain_of_copies(won) if kind == "transfer" else _gain(won, uncertainty, has_gpu=has_gpu)
    evidence = {
        "share": share,
        "share_of_that_line": rank.share([most]),
        "samples": rank.total,
        "lines": float(len(lines)),
    }
    if has_gpu and busy is not None:
        evidence["gpu_busy"] = busy
    summary = row.summary.format(**fields)
    around = 0.0 if has_gpu else _around(lines, most, rank, numbers)
    if around > won + uncertainty:
        summary += f"; together with the rest of that function {around:.0%} of a step"
        evidence["share_of_function"] = around
        gain = replace(gain, high=around).narrowed()
    return share, Finding(
        id=row.id,
        severity=row.severity,
        summary=summary,
        action=cause.action or row.action,
        evidence=evidence,
        where=Where(section=str(most), rank=rank.rank),
        gain=gain,
        command=f"otel-mlperf show {numbers.summary.short_id}",
    )


def _around(lines: list[Line], most: Line, rank: StackLines, numbers: RunNumbers) -> float:
    """Return the share of a step in ``lines`` and in the other lines of the function of ``most``.

    The other lines count because a loop over the elements of a batch does more with each element
    than fetch it. They do not count if the function also calls a part of the training.
    """
    part = next((part for part in rank.own_parts() if most in part), [])
    return min(rank.share({*lines, *part}), numbers.uncovered)


def _gain(won: float, uncertainty: float, *, has_gpu: bool) -> Gain:
    """Return the gain: from 3/4 of ``won - uncertainty`` up to ``won + uncertainty``.

    Some output might be needed. With a GPU the factor is 1/2, because another call of the loop
    might wait for the GPU instead.
    """
    least = _MIN_SAVED_WITH_GPU if has_gpu else _MIN_SAVED
    return Gain(
        low=least * max(0.0, won - uncertainty), high=min(1.0, won + uncertainty)
    ).narrowed()


def _gain_of_copies(share: float) -> Gain:
    high = min(share, 1 - share)
    return Gain(low=high / 2, high=high)


def line_cause(line: Line, rank: StackLines, *, has_gpu: bool) -> Cause | None:
    """Return the most frequent kind among the sampled calls of a line.

    Return None if that kind is unknown or rare, or if a DataLoader called the line.
    """
    if line.within == "loading":
        return None
    calls = rank.calls[line]
    found: dict[Cause | None, float] = {}
    for call, samples in calls.items():
        if call.name and call.name != ITERATION:
            cause = cause_of(call, has_gpu=has_gpu)
            found[cause] = found.get(cause, 0.0) + samples
    # Samples between the calls, in Python's own work, count as the same kind.
    most = max(found, key=lambda cause: found[cause], default=None)
    return most if most and found[most] >= _KNOWN * sum(calls.values()) else None
