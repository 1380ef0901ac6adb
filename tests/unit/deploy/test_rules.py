"""The alert rules fire when they should, and tell people what to do."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from servers.dashboard import DASHBOARDS, METRICS, labels_of
from servers.running import DEPLOY

from otel_mlperf.findings.finding_table import RULES as RULES_OF_A_RUN
from otel_mlperf.findings.finding_table import TABLE
from otel_mlperf.report.alert_rules import render_alert_rules

RULES = DEPLOY / "prometheus" / "rules.yaml"
SCENARIOS = Path(__file__).with_name("alerts.yaml")
CONFIGURATION = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
PROMOTED = {
    name.replace(".", "_") for name in CONFIGURATION["otlp"]["promote_resource_attributes"]
} | {"job"}
ALERTS = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
OF_FIVE_MINUTES = {"GpuThrottled"}
"""A run warns of what holds now; this alert fires on the share of readings in which it held."""
THRESHOLD = re.compile(r" ([<>]) ([\d.]+)$")

each_alert = pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])


def run(*command, cwd=None):
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_prometheus_reads_the_rules(promtool):
    """Prometheus' own checker finds no fault in the configuration and in the rules it names."""
    assert CONFIGURATION["rule_files"] == [RULES.name]
    said = run(promtool, "check", "config", DEPLOY / "prometheus" / "prometheus.yml")

    assert f"{len(ALERTS)} rules found" in said


def test_alerts_fire_when_they_should_and_only_then(promtool):
    """In every scenario the alerts that fire are those that it names."""
    run(promtool, "test", "rules", SCENARIOS.name, cwd=SCENARIOS.parent)


def test_every_alert_has_a_scenario():
    """No alert is shipped that has never been seen to fire."""
    seen = set(re.findall(r'alertname="(\w+)"', SCENARIOS.read_text()))

    assert seen == {alert["alert"] for alert in ALERTS}


def test_the_file_is_what_the_table_of_findings_says():
    """The shipped file is written from the table; `python -m otel_mlperf.report.alert_rules`."""
    assert render_alert_rules(TABLE) == RULES.read_text()


@each_alert
def test_alerts_say_what_is_wrong_and_what_to_do(alert):
    """Each has a severity, a summary, a description with its value, advice and a dashboard."""
    said = alert["annotations"]

    assert alert["labels"]["severity"] in {"critical", "warning", "info"}
    assert said.keys() == {"summary", "description", "what_to_do", "dashboard"}
    assert "$value" in said["description"] or alert["alert"] == "GpuLost"
    assert len(said["what_to_do"]) > 40


def test_expressions_that_are_written_by_hand_say_why():
    """All others are derived from the series that the run itself is judged by."""
    by_hand = [row for row in TABLE if row.alert and row.alert.expr]

    assert len(by_hand) == 6
    assert all(row.alert.because for row in by_hand)


@each_alert
def test_alerts_open_a_dashboard_that_is_shipped(alert):
    """The dashboard opens on the run that is in trouble."""
    uids = {json.loads(path.read_text())["uid"] for path in DASHBOARDS}
    address, _, variables = alert["annotations"]["dashboard"].partition("?")

    assert address.removeprefix("/d/") in uids
    assert variables == "var-run={{ $labels.ml_run_name | urlquery }}"


@each_alert
def test_alerts_name_metrics_that_are_sent(alert):
    """Metrics and labels are those that the package makes; what a text shows is kept as a label."""
    expr = alert["expr"]
    inside = " ".join(re.findall(r"\{([^}]*)\}", expr))
    grouped = set(re.findall(r"\w+", " ".join(re.findall(r"\b(?:by|on) \(([^)]*)\)", expr))))
    bare = re.sub(r"\{[^}]*\}|\b(?:by|on) \([^)]*\)", " ", expr)
    metrics = set(re.findall(r"\b(?:ml|hw|linux|system|process|pytorch|otel_mlperf)_\w+", bare))
    known = PROMOTED.union(*map(labels_of, metrics))
    text = " ".join(alert["annotations"].values())

    assert metrics
    assert metrics <= METRICS.keys()
    assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", inside)) | grouped <= known
    assert set(re.findall(r"\$labels\.(\w+)", text)) <= grouped


@each_alert
def test_alerts_end_with_their_threshold(alert):
    """The number to change is the last word of a rule."""
    assert THRESHOLD.search(alert["expr"])


@pytest.mark.parametrize("rule", RULES_OF_A_RUN, ids=lambda rule: rule.name)
def test_whatever_a_run_warns_of_is_an_alert_too(rule):
    """An alert of the same name looks at the same series, against the same threshold."""
    (alert,) = (alert for alert in ALERTS if alert["alert"] == rule.name)
    sign, bound = THRESHOLD.search(alert["expr"]).groups()

    assert sign == {"above": ">", "below": "<"}[rule.comparison]
    assert float(bound) == rule.threshold or rule.name in OF_FIVE_MINUTES
    assert rule.measured.metric.prometheus in alert["expr"]
    for label, values in rule.measured.where:
        (chosen,) = set(re.findall(label.replace(".", "_") + r'=~?"([^"]*)"', alert["expr"]))
        assert set(chosen.split("|")) == set(values)
