"""Findings of a run's time: low goodput, long set-up, late requests, time outside training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import numpy as np
from msgspec.structs import replace

from otel_mlperf import names
from otel_mlperf.analysis.findings.gpu_busy import max_possible_gain
from otel_mlperf.analysis.findings.line_causes import cause_of
from otel_mlperf.analysis.findings.run_numbers import once_a_run
from otel_mlperf.analysis.findings.sampled_lines import find_copying_lines, find_sampled_lines
from otel_mlperf.analysis.findings.stack_lines import costliest_outside, ending_with, most_uncovered
from otel_mlperf.analysis.findings.step_gaps import time_around_checkpoints_ns
from otel_mlperf.analysis.steps.step_shares import UNTRACKED, shown
from otel_mlperf.analysis.summary.goodput_shapes import PRODUCTIVE, SET_UP
from otel_mlperf.findings.finding import Finding, Gain, Where
from otel_mlperf.findings.finding_table import row_of

if TYPE_CHECKING:
    from otel_mlperf.analysis.findings.run_numbers import RunNumbers
    from otel_mlperf.analysis.summary.goodput_shapes import Ledger
    from otel_mlperf.analysis.summary.summary_shapes import Summary


_MIN_RUN_NS: Final = 600_000_000_000
"""Minimum duration of a run, because in shorter runs imports and set-up normally dominate."""
_MIN_SET_UP_NS: Final = 5_000_000_000
"""Minimum set-up, because importing a framework and creating a model always take some seconds."""
_MIN_LONGEST: Final = 0.1
_MAX_SAVED_SET_UP: Final = 0.4
"""Maximum share of the run that can be saved, because model, data and libraries must be loaded."""
_NO_LINE: Final = "Set OTEL_MLPERF_READINGS=detailed to report the most expensive line of code."
_NO_SET_UP: Final = [names.RUN, names.EPOCH, names.PHASE, names.GARBAGE_COLLECTION]
_LONGEST: Final = """WITH first AS (SELECT rank, restart, min(start_ns) AS first_ns FROM steps
    GROUP BY rank, restart)
SELECT name, sum(self_ns) / count(DISTINCT s.rank) AS own_ns FROM sections s
    JOIN first USING (rank, restart)
WHERE n IS NULL AND NOT beside AND start_ns < first_ns AND category NOT IN (SELECT unnest($around))
GROUP BY name ORDER BY own_ns DESC, name LIMIT 1"""
_MIN_REQUESTS: Final = 20


def find_low_goodput(numbers: RunNumbers) -> list[Finding]:
    """Return one finding if a run of at least ten minutes has less goodput than the threshold."""
    ledger, row = numbers.summary.ledger, row_of("low_goodput")
    if ledger is None or ledger.wall_ns < _MIN_RUN_NS:
        return []
    if not ledger.goodput or not row.holds(ledger.goodput):
        return []
    total = sum(ledger.spent_ns.values())
    others = {kind: ns for kind, ns in ledger.spent_ns.items() if kind not in PRODUCTIVE}
    most = max(others, key=lambda kind: others[kind])
    share = others[most] / total
    return [
        Finding(
            id=row.id,
            severity=row.severity,
            summary=row.summary.format(value=ledger.goodput, most=f"{most} ({share:.0%})"),
            action=row.action,
            evidence={"goodput": ledger.goodput, "wall_ns": ledger.wall_ns, "most": share},
            gain=Gain(low=0.0, high=share, of="run"),
            command=f"otel-mlperf summary {numbers.summary.short_id}",
        )
    ]


def find_long_set_up(numbers: RunNumbers) -> list[Finding]:
    """Return one finding if set-up before the first step exceeds the threshold share of the run.

    Runs without steps are excluded, because the set-up cannot be separated from other time.
    """
    ledger, row = numbers.summary.ledger, row_of("set_up")
    if ledger is None or numbers.summary.steps is None:
        return []
    spent_ns = _set_up_ns(ledger)
    share = spent_ns / ledger.wall_ns if ledger.wall_ns else 0.0
    if spent_ns < _MIN_SET_UP_NS or not row.holds(share):
        return []
    of_line, line = costliest_outside(numbers, names.STACK_SAMPLES_SET_UP)
    longest = numbers.store.rows(_LONGEST, around=_NO_SET_UP)
    name, own_ns = longest[0] if longest else ("", 0.0)
    is_named = own_ns >= _MIN_LONGEST * spent_ns
    where = f", of which {own_ns / 1e9:.1f} s are in {shown(name)}" if is_named else ""
    where += ending_with(of_line, line, of="the set-up")
    most = min(_MAX_SAVED_SET_UP, share * of_line if line else share)
    return [
        Finding(
            id=row.id,
            severity=row.severity,
            summary=row.summary.format(value=share, spent=spent_ns / 1e9, longest=where),
            action=row.action if line else f"{row.action} {_NO_LINE}",
            evidence={"share": share, "set_up_ns": spent_ns, "longest_ns": float(own_ns)},
            where=Where(section=line or (shown(name) if is_named else SET_UP)),
            gain=Gain(low=0.0, high=most, of="run"),
            command=f"otel-mlperf summary {numbers.summary.short_id}",
        )
    ]


def find_late_requests(numbers: RunNumbers) -> list[Finding]:
    """Return one finding per kind of request that too often exceeds its time limit."""
    row = row_of("requests_late")
    return [
        Finding(
            id=row.id,
            severity=row.severity,
            summary=row.summary.format(value=calls.within_share, ml_section_name=calls.name),
            action=row.action,
            evidence={
                "within": calls.within_share,
                "bound_ns": calls.bound_s * 1e9,
                "p95_ns": calls.p95_ns,
                "requests": calls.count,
            },
            where=Where(section=calls.name),
            command=f"otel-mlperf summary {numbers.summary.short_id} --phase request",
        )
        for calls in numbers.summary.calls
        if calls.category == names.REQUEST and calls.count >= _MIN_REQUESTS
        if calls.bound_s is not None and calls.within_share is not None
        if row.holds(calls.within_share)
    ]


_MIN_STEPS: Final = 10
_OF_TRAINING: Final = {names.FORWARD, names.BACKWARD, names.OPTIMIZER}
_ENCLOSING: Final = "SELECT DISTINCT parent FROM sections WHERE n IS NOT NULL"
_MIN_COLLECTING: Final = 3
_COLLECTED: Final = 0.8
_MIN_OF_LINES, _MAX_OF_LINES = 0.7, 1.2
"""Minimum and maximum fraction of the time in program lines that can be saved."""
_OF_LIBRARY: Final = "That line computes with {library} on the CPU. "
_WARN_ABOVE_RUN_SHARE: Final = 0.3
"""Share of the run above which validation is a warning; less validation may be intended."""
_AROUND: Final = (
    ": {saved:.0%} for saving, {around:.0%} for related work such as renaming and removing files"
)
_MIN_AROUND: Final = 0.02
_LINE_ACTION: Final = (
    "Run that line less often, or for a whole batch in one operation. Put `with om.span(...)` "
    "around that line to measure its time."
)
_SHORTEST_NS: Final = 10_000_000_000
"""Minimum duration of a run for meaningful shares, because in shorter runs set-up dominates."""
_SHORTEST_OF_MANY_NS: Final = 5_000_000_000
_MANY: Final = 5


def find_extra_sections(numbers: RunNumbers) -> list[Finding]:
    """Return one finding per section that costs much of a step without being part of the training.

    Only runs with sections for forward pass, backward pass and optimizer are evaluated, because in
    other runs the section might be one of these three under another name.
    """
    steps, row = numbers.summary.steps, row_of("extra_section")
    if steps is None or steps.count < _MIN_STEPS:
        return []
    if not {one.category for one in steps.rows} >= _OF_TRAINING:
        return []
    found = [
        Finding(
            id=row.id,
            severity=row.severity,
            summary=row.summary.format(section=one.name, value=one.share),
            action=row.action,
            evidence={"share": one.share},
            where=Where(section=one.name),
            gain=Gain(low=0.0, high=one.share),
            command=f"otel-mlperf show {numbers.summary.short_id}",
        )
        for one in steps.rows
        if one.category == names.OTHER and one.name != UNTRACKED
        if not (one.beside or one.inside) and row.holds(one.share)
    ]
    around = {name for (name,) in numbers.store.rows(_ENCLOSING)} if found else set()
    return _limited_by_gpu([one for one in found if one.where.section not in around], numbers)


def find_large_shares(numbers: RunNumbers) -> list[Finding]:
    """Return one finding each for garbage collections, untracked time, validation, checkpoints.

    Each is reported only if its share of a step or of the run exceeds the threshold.
    """
    summary = numbers.summary
    found = []
    steps = summary.steps
    if steps is not None and steps.count >= _MIN_STEPS:
        collected = sum(
            row.share
            for row in steps.rows
            if row.category == names.GARBAGE_COLLECTION and not row.beside
        )
        if _collecting_steps(numbers) >= _MIN_COLLECTING:
            collecting = _finding("garbage_collection", collected, "step", summary)
            found += _limited_by_gpu(collecting, numbers)
        # If the program has no sections at all, untracked time is not a finding.
        if len(steps.rows) > 1:
            costly = find_costly_line(numbers)
            unexplained = _unexplained(numbers) - sum(one.evidence["share"] for one in costly)
            uncovered = _finding("uncovered", unexplained, "step", summary)
            lines_added = [one if costly else _with_line(one, numbers) for one in uncovered]
            found += _limited_by_gpu(costly + lines_added, numbers)
    if steps is not None:
        for id, name in (("validation", names.VALIDATE), ("checkpoint", names.SPAN_CHECKPOINT)):
            outside = [one for one in summary.outside if one.name == name]
            many = sum(one.count or 0 for one in outside) >= _MANY
            if summary.duration_ns >= (_SHORTEST_OF_MANY_NS if many else _SHORTEST_NS):
                spent = sum(one.sum_ns for one in outside) / summary.duration_ns
                # Recurring work is judged without the set-up, as if the run were longer.
                part = _after_set_up(summary) if many else 1.0
                found += (
                    _checkpoints(spent, part, numbers)
                    if id == "checkpoint"
                    else _finding(id, spent, "run", summary, part)
                )
    return found


def _after_set_up(summary: Summary) -> float:
    ledger = summary.ledger
    if ledger is None:
        return 1.0
    return max(0.0, 1.0 - _set_up_ns(ledger) / summary.duration_ns) or 1.0


def _set_up_ns(ledger: Ledger) -> float:
    return ledger.spent_ns[SET_UP] / len(ledger.ranks)


def _checkpoints(saved: float, part: float, numbers: RunNumbers) -> list[Finding]:
    """Return the finding of checkpoints, including the program's own work around each checkpoint.

    ``saved`` is the share of the run in checkpoints; ``part`` as in ``_finding``.
    """
    around = time_around_checkpoints_ns(numbers) / numbers.summary.duration_ns
    found = _finding("checkpoint", saved + around, "run", numbers.summary, part)
    if around < _MIN_AROUND:
        return found
    return [
        replace(
            one,
            summary=one.summary + _AROUND.format(saved=saved, around=around),
            evidence=one.evidence | {"around_share": around},
        )
        for one in found
    ]


def _limited_by_gpu(found: list[Finding], numbers: RunNumbers) -> list[Finding]:
    """Return findings whose threshold the GPU's idle share exceeds; limit their gains to it."""
    most = max_possible_gain(numbers)
    return [
        replace(one, gain=one.gain and _at_most(one.gain, most))
        for one in found
        if row_of(one.id).holds(most)
    ]


def _at_most(gain: Gain, most: float) -> Gain:
    return replace(gain, low=min(gain.low, most), high=min(gain.high, most))


def _with_line(finding: Finding, numbers: RunNumbers) -> Finding:
    """Add the line of the user's program that likely causes most of the untracked time, if known.

    The minimum gain is zero, because that line might be necessary.
    """
    costliest = most_uncovered(numbers)
    if costliest is None:
        return finding
    return replace(
        finding,
        summary=finding.summary + costliest.words,
        action=_LINE_ACTION,
        gain=Gain(low=0.0, high=min(costliest.share, numbers.uncovered)),
    )


@once_a_run
def find_costly_line(numbers: RunNumbers) -> list[Finding]:
    """Return one finding if untracked lines of the user's program cost too much of a step.

    Lines that another finding covers, such as output, are excluded.
    """
    row, costliest = row_of("costly_line"), most_uncovered(numbers)
    if costliest is None or cause_of(costliest.call, has_gpu=numbers.uses_gpu) is not None:
        return []
    share = min(costliest.of_named, _unexplained(numbers))
    if not row.holds(share):
        return []
    library = costliest.call.package
    fields = {"value": share, "place": costliest.place}
    return [
        Finding(
            id=row.id,
            severity=row.severity,
            summary=row.summary.format(**fields),
            action=(_OF_LIBRARY.format(library=library) if library else "") + row.action,
            evidence={"share": share, "share_of_that_line": costliest.share},
            where=Where(section=str(costliest.line), rank=costliest.rank),
            # Some of the work may be needed in each step. Its effect on caches adds to the gain.
            gain=Gain(
                low=_MIN_OF_LINES * min(share, costliest.share),
                high=min(1.0, _MAX_OF_LINES * share),
            ).narrowed(),
            command=f"otel-mlperf show {numbers.summary.short_id}",
        )
    ]


def _unexplained(numbers: RunNumbers) -> float:
    """Return the untracked share of a step that findings of sampled lines do not explain."""
    found = find_sampled_lines(numbers) + find_copying_lines(numbers)
    known = sum(one.evidence.get("share_of_function", one.evidence["share"]) for one in found)
    return numbers.uncovered - known


def _collecting_steps(numbers: RunNumbers) -> int:
    return sum(
        int(np.count_nonzero(one.own_ns))
        for one in numbers.sections
        if one.category == names.GARBAGE_COLLECTION
    )


def _finding(
    id: str, share: float, of: Literal["step", "run"], summary: Summary, part: float = 1.0
) -> list[Finding]:
    """Return a finding of ``share`` if ``share / part`` exceeds the threshold, else none.

    ``share`` is a share of a step or of the run (``of``). ``part`` is the fraction of the run after
    set-up, or 1.0.
    """
    row = row_of(id)
    if not row.holds(share / part):
        return []
    # Naming untracked time saves nothing. About half of the validations and checkpoints may be
    # necessary, but hardly any garbage collections.
    least = share * (_COLLECTED if id == "garbage_collection" else 0.5)
    gain = None if id == "uncovered" else Gain(low=least, high=share, of=of)
    kept = summary.slowest.kept_number if summary.slowest else None
    command = f"otel-mlperf show {summary.short_id} --step {kept}" if kept is not None else ""
    return [
        Finding(
            id=row.id,
            severity="warning"
            if id == "validation" and share > _WARN_ABOVE_RUN_SHARE
            else row.severity,
            summary=row.summary.format(value=share),
            action=row.action,
            evidence={"share": share},
            where=Where(section=UNTRACKED if id == "uncovered" else id),
            gain=gain,
            command=command if of == "step" else f"otel-mlperf summary {summary.short_id}",
        )
    ]
