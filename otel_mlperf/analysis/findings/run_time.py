"""Findings of a run's time: low goodput, long set-up, and requests that exceed their bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.analysis.findings.stack_lines import costliest_outside, ending_with
from otel_mlperf.analysis.steps.step_shares import shown
from otel_mlperf.analysis.summary.goodput_shapes import PRODUCTIVE, SET_UP
from otel_mlperf.findings.finding import Finding, Gain, Where
from otel_mlperf.findings.finding_table import row_of

if TYPE_CHECKING:
    from otel_mlperf.analysis.findings.run_numbers import RunNumbers

_LEAST_NS: Final = 600_000_000_000
"""Minimum duration of a run: in shorter runs imports and set-up dominate, which is normal."""
_LEAST_SET_UP_NS: Final = 5_000_000_000
"""Minimum set-up: importing a framework and creating a model take some seconds in each program."""
_LEAST_LONGEST: Final = 0.1
"""Share of the set-up from which its longest section is named."""
_MOST_SET_UP: Final = 0.4
"""Maximum share of the run that can be saved: model, data and libraries have to be loaded in any
case."""
_NO_LINE: Final = "With OTEL_MLPERF_READINGS=detailed the most expensive line is reported."
_NO_SET_UP: Final = [names.RUN, names.EPOCH, names.PHASE, names.GARBAGE_COLLECTION]
"""Categories that are not part of a set-up, or do not name a part of it."""
_LONGEST: Final = """WITH first AS (SELECT rank, restart, min(start_ns) AS first_ns FROM steps
    GROUP BY rank, restart)
SELECT name, sum(self_ns) / count(DISTINCT s.rank) AS own_ns FROM sections s
    JOIN first USING (rank, restart)
WHERE n IS NULL AND NOT beside AND start_ns < first_ns AND category NOT IN (SELECT unnest($around))
GROUP BY name ORDER BY own_ns DESC, name LIMIT 1"""
_FEWEST: Final = 20
"""Minimum number of requests for a significant share of late ones."""


def find_low_goodput(numbers: RunNumbers) -> list[Finding]:
    """Return one finding if a run of at least ten minutes has less goodput than the threshold."""
    ledger, row = numbers.summary.ledger, row_of("low_goodput")
    if ledger is None or ledger.wall_ns < _LEAST_NS:
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
            summary=row.summary.format(value=ledger.goodput, most=f"{most}, {share:.0%}"),
            action=row.action,
            evidence={"goodput": ledger.goodput, "wall_ns": ledger.wall_ns, "most": share},
            gain=Gain(low=0.0, high=share, of="run"),
            command=f"otel-mlperf summary {numbers.summary.short_id}",
        )
    ]


def find_long_set_up(numbers: RunNumbers) -> list[Finding]:
    """Return one finding if the set-up before the first step exceeds the row's share of the run.

    Runs without steps are excluded: their set-up cannot be separated from the rest.
    """
    ledger, row = numbers.summary.ledger, row_of("set_up")
    if ledger is None or numbers.summary.steps is None:
        return []
    spent_ns = ledger.spent_ns[SET_UP] / len(ledger.ranks)
    share = spent_ns / ledger.wall_ns if ledger.wall_ns else 0.0
    if spent_ns < _LEAST_SET_UP_NS or not row.holds(share):
        return []
    of_line, line = costliest_outside(numbers, names.STACK_SAMPLES_SET_UP)
    longest = numbers.store.rows(_LONGEST, around=_NO_SET_UP)
    name, own_ns = longest[0] if longest else ("", 0.0)
    is_named = own_ns >= _LEAST_LONGEST * spent_ns
    where = f", {own_ns / 1e9:.1f} s of it in {shown(name)}" if is_named else ""
    where += ending_with(of_line, line)
    most = min(_MOST_SET_UP, share * of_line if line else share)
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
    """Return one finding per kind of request with too few requests within their bound."""
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
        if calls.category == names.REQUEST and calls.count >= _FEWEST
        if calls.bound_s is not None and calls.within_share is not None
        if row.holds(calls.within_share)
    ]
