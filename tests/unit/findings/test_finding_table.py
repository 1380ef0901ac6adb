"""The table of findings has each condition once, with all that it needs."""

from __future__ import annotations

import re
from string import Formatter

import pytest

from otel_mlperf.findings.finding import SEVERITIES, Finding, Gain, worst_findings_first
from otel_mlperf.findings.finding_table import RULES, TABLE, row_of

each_row = pytest.mark.parametrize("row", TABLE, ids=lambda row: row.id)


def test_ids_and_names_are_unique():
    """No id and no name stands for two conditions."""
    assert len({row.id for row in TABLE}) == len(TABLE)
    assert len({row.name for row in TABLE}) == len(TABLE)


@each_row
def test_rows_tell_somebody(row):
    """Each is a live warning, an alert or judged at the end, and what it tells has its texts."""
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", row.id)
    assert row.severity in SEVERITIES
    assert row in RULES or row.alert is not None or row.of_ended
    assert bool(row.summary) == (row in RULES or row.of_ended)
    assert row.action


@each_row
def test_a_row_holds_beyond_its_threshold_only(row):
    """The threshold itself is no fault yet."""
    sign = 1 if row.comparison == "above" else -1

    assert not row.holds(row.threshold)
    assert row.holds(row.threshold + sign)
    assert not row.holds(row.threshold - sign)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_live_texts_name_only_what_the_rule_distinguishes_by(rule):
    """A text asks for the value and for labels that the rule has."""
    asked = {name for _, name, _, _ in Formatter().parse(rule.summary) if name}

    assert asked <= {"value", *(label.replace(".", "_") for label in rule.by)}


def test_rows_are_found_by_their_ids():
    """The row of an id; of none that there is not."""
    assert row_of("data_loading").name == "DataWait"
    with pytest.raises(KeyError):
        row_of("nonsense")


def test_the_worst_finding_comes_first():
    """By severity, then by what would be won most; else in the given order."""
    told = [
        ("info", Gain(low=0.5, high=0.9)),
        ("warning", None),
        ("warning", Gain(low=0.0, high=0.3)),
        ("critical", None),
        ("warning", None),
    ]
    findings = [
        Finding(id=str(at), severity=severity, summary="", action="", gain=gain)
        for at, (severity, gain) in enumerate(told)
    ]

    assert [one.id for one in worst_findings_first(findings)] == ["3", "2", "1", "4", "0"]


def test_what_other_programs_cost_comes_behind_own_causes():
    """On a busy machine the own cause saves its part all the same; a small one is no reason."""
    gains = {"noisy_neighbour": 0.6, "small_operators": 0.4, "sync_in_loop": 0.05}
    findings = [
        Finding(id=name, severity="warning", summary="", action="", gain=Gain(low=0, high=high))
        for name, high in gains.items()
    ]

    order = [one.id for one in worst_findings_first(findings)]
    assert order == ["small_operators", "noisy_neighbour", "sync_in_loop"]
