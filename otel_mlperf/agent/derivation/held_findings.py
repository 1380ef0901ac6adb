"""Spans and metric series of findings that are true during the run.

A finding that becomes true gets a span of zero length below the run's span, which itself is sent
only when the run ends. While the finding is true, it also has a series of the findings metric. Both
are derived from events, so a replay reports the same.
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
"""Entry number of the span's name. It is negative, because processes use only positive numbers."""
_OVER_NS: Final = 30 * 10**9
"""A finding ends this long after it was last true, as in ``rule_evaluator``."""


def start_finding(state: AgentState, held: WarningHeld) -> tuple[JournalState, SampledSpan] | None:
    """Store a finding that is true; return journal and span if the finding was not true before.

    Return None if the finding was true before, or if its rule or journal is unknown. A finding of
    the node becomes a span in the trace of the node's first rank.
    """
    rule, journal = _RULES.get(held.id), state.journals.get(held.journal)
    if rule is None or (journal is None and held.journal):
        return None
    # Without the start time: a restarted agent evaluates the rules anew, with a later start.
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
    """Set a series for each finding that is true, and end the series of all other findings."""
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
