"""Spans and metric series of the findings that hold while a run goes on.

A finding that starts to hold becomes a span without length below the run's own span, which is sent
only when the run ends. As long as it holds, it is a series of the metric. Both are derived from the
events, so that an agent that replays reports the same.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.agent.derivation.made_spans import first_rank, moment_span
from otel_mlperf.agent.derivation.metric_series import Meter
from otel_mlperf.findings.finding_table import RULES

if TYPE_CHECKING:
    from otel_mlperf.agent.model.agent_state import AgentState
    from otel_mlperf.agent.model.events import Mark, WarningHeld
    from otel_mlperf.agent.model.journal_state import JournalState
    from otel_mlperf.agent.model.kept_span import SampledSpan

_RULES: Final = {rule.id: rule for rule in RULES}
_SPAN: Final = -3
"""A number that no process uses: those of its own names are positive."""
_OVER_NS: Final = 30 * 10**9
"""A finding has ended this long after it was last seen to hold, as everywhere else."""


def start_finding(state: AgentState, held: WarningHeld) -> tuple[JournalState, SampledSpan] | None:
    """Store that a finding holds; return its span if it did not hold before.

    A finding of the node is in the trace of the node's first rank.
    """
    rule, journal = _RULES.get(held.id), state.journals.get(held.journal)
    if rule is None or (journal is None and held.journal):
        return None
    # Without the start time: an agent that continues for another one starts to watch anew.
    key = json.dumps([held.id, held.journal, held.labels])
    is_known = key in state.findings
    state.findings[key] = held
    journal = journal or first_rank(state)
    if is_known or journal is None:
        return None
    attributes = {
        names.FINDING_ID: held.id,
        names.FINDING_SEVERITY: rule.severity,
        names.FINDING_SUMMARY: rule.format_summary(held.value, held.labels),
        names.FINDING_ACTION: rule.action,
        names.FINDING_VALUE: held.value,
        names.FINDING_THRESHOLD: held.threshold,
    }
    return journal, moment_span(
        journal, _SPAN, names.SPAN_FINDING, names.OTHER, f"{key}/{held.start_unix_ns}",
        held.end_unix_ns, {"a": attributes | held.labels},
    )  # fmt: skip


def publish_findings(state: AgentState, mark: Mark) -> None:
    """Set the series of the findings that hold; those of other findings end."""
    is_over = [k for k, one in state.findings.items() if mark.unix_ns - one.end_unix_ns > _OVER_NS]
    for key in is_over:
        del state.findings[key]
    for meter in (Meter(state), *map(Meter, state.ranks.values())):
        meter.drop(names.FINDING)
    for held in state.findings.values():
        journal = state.journals.get(held.journal)
        if journal is not None or not held.journal:
            meter = Meter(state.rank_of(journal) if journal else state)
            severity = _RULES[held.id].severity
            labels = {names.FINDING_ID: held.id, names.FINDING_SEVERITY: severity}
            meter.set(names.FINDING.name, labels | held.labels, 1.0)
