"""Findings of lines that hold up the main thread: output, results, waits, conversions.

A line is classified by most of the sampled calls in it, if their name or library is known here. A
call very likely does what its name suggests, but this is not certain.
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

_FEWEST: Final = 10
"""Minimum number of steps for a typical step."""
_PINNED: Final = "SELECT count(*) FROM instruments WHERE name = $name"
_KNOWN: Final = 0.1
"""Minimum share of a line's samples in calls of its kind: other samples are between the calls."""
_LEAST_SAVED: Final = 0.75
_LEAST_SAVED_BESIDE: Final = 0.5
_LIKELY: Final = ", likely in {call} ({place})"
_WAITING: Final = ("sync_in_loop", "blocked_loop")
"""Findings without a gain while a GPU works concurrently."""
_STANDS: Final = "{doing}, most of that time in {call} ({place})"


@once_a_run
def find_sampled_lines(numbers: RunNumbers) -> list[Finding]:
    """Return one finding each for output, waits and conversions, for the rank that loses most."""
    kinds: tuple[Kind, ...] = ("sync_in_loop", "blocked_loop", "conversions")
    return [finding for kind in kinds for finding in _found(numbers, kind)]


@once_a_run
def find_copying_lines(numbers: RunNumbers) -> list[Finding]:
    """Return one finding for the rank that waits most for copies, if batches are not pinned."""
    ((pinned,),) = numbers.store.rows(_PINNED, name=names.LOADER_PIN.name)
    return [] if pinned else _found(numbers, "transfer")


def _found(numbers: RunNumbers, kind: Kind) -> list[Finding]:
    steps = numbers.summary.steps
    if steps is None or steps.count < _FEWEST:
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
    # With few samples, a share is uncertain by twice its standard error.
    unsure = 2 * sqrt(share * (1 - share) / rank.total)
    # The awaited GPU work has to be done in any case: only the rest of a step can be saved.
    won = min(share, 1 - (busy or 0.0))
    if (busy is None and kind in _WAITING) or not row.holds(won - unsure / 2):
        return share, None
    most = max(lines, key=lambda line: rank.share([line]))
    cause = causes[most]
    assert cause is not None
    calls = rank.calls[most]
    named = [call for call in calls if cause_of(call, has_gpu=has_gpu) == cause]
    call = max(named, key=lambda one: calls[one])
    words = {"value": share, "call": f"{call.name}()", "place": str(most), "doing": cause.doing}
    words["how"] = _LIKELY.format(**words)
    if kind == "blocked_loop":
        words["doing"] = _STANDS.format(**words)
    gain = _gain_of_copies(won) if kind == "transfer" else _gain(won, unsure, has_gpu=has_gpu)
    evidence = {
        "share": share,
        "share_of_that_line": rank.share([most]),
        "samples": rank.total,
        "lines": float(len(lines)),
    }
    if has_gpu and busy is not None:
        evidence["gpu_busy"] = busy
    summary = row.summary.format(**words)
    around = 0.0 if has_gpu else _around(lines, most, rank, numbers)
    if around > won + unsure:
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
    """Return the share of a step of these lines and of the whole function of one, 0.0 to 1.0.

    A loop over the elements of a batch does more with each element than fetch it. A function that
    also calls a part of the training is not counted as a whole.
    """
    part = next((part for part in rank.own_parts() if most in part), [])
    return min(rank.share({*lines, *part}), numbers.uncovered)


def _gain(won: float, unsure: float, *, has_gpu: bool) -> Gain:
    """Return the gain: at least three quarters, as some output or numbers may be needed.

    With a GPU at least half: the loop's other work may wait for the GPU instead.
    """
    least = _LEAST_SAVED_BESIDE if has_gpu else _LEAST_SAVED
    return Gain(low=least * max(0.0, won - unsure), high=min(1.0, won + unsure)).narrowed()


def _gain_of_copies(share: float) -> Gain:
    """Return the gain of pinned memory, from which copies run concurrently to the step."""
    high = min(share, 1 - share)
    return Gain(low=high / 2, high=high)


def line_cause(line: Line, rank: StackLines, *, has_gpu: bool) -> Cause | None:
    """Return the kind of most of a line's calls; None for calls by a DataLoader (loading)."""
    if line.within == "loading":
        return None
    calls = rank.calls[line]
    found: dict[Cause | None, float] = {}
    for call, samples in calls.items():
        if call.name and call.name != ITERATION:
            cause = cause_of(call, has_gpu=has_gpu)
            found[cause] = found.get(cause, 0.0) + samples
    # Python's own work between the calls counts to the kind of the calls.
    most = max(found, key=lambda cause: found[cause], default=None)
    return most if most and found[most] >= _KNOWN * sum(calls.values()) else None
