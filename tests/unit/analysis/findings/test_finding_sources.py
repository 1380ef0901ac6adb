"""A finding installed by another package is treated like one of our own."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest
import yaml
from run_folders import digits

from otel_mlperf.analysis.findings.finding_sources import all_rows, judge_run
from otel_mlperf.cli import main
from otel_mlperf.findings.finding_table import TABLE
from otel_mlperf.report.alert_rules import render_alert_rules
from otel_mlperf.report.notebook import render_html
from otel_mlperf.store.run_folders import read_run

SOURCE = """
from otel_mlperf.analysis.findings.finding_sources import FindingSource
from otel_mlperf.findings.finding import Finding, Gain, Where
from otel_mlperf.findings.finding_row import Alert, FindingRow

ROW = FindingRow(
    id="slow_forward",
    name="SlowForward",
    severity="critical",
    threshold=0.2,
    summary="the forward pass takes {value:.0%} of a step",
    action="Compile the model.",
    of_ended=True,
    alert=Alert(
        expr="sum by (job) (rate(forward_seconds_total[5m]))",
        group="training",
        after="1m",
        summary="The forward pass of {{ $labels.job }} is slow.",
        description="It takes {{ $value | humanizePercentage }} of the time.",
    ),
)

def find(numbers):
    steps = numbers.summary.steps
    share = sum(row.share for row in steps.rows if row.name == "forward") if steps else 0.0
    if not ROW.holds(share):
        return []
    return [
        Finding(
            id=ROW.id,
            severity=ROW.severity,
            summary=ROW.summary.format(value=share),
            action=ROW.action,
            evidence={"share": share},
            where=Where(section="forward"),
            gain=Gain(low=0.0, high=share / 2),
        )
    ]

SLOW_FORWARD = FindingSource(find, rows=(ROW,))
"""
FIRES = """
rule_files: [rules.yaml]
evaluation_interval: 30s
tests:
  - interval: 1m
    input_series:
      - {series: 'forward_seconds_total{job="slow"}', values: 0+30x20}
      - {series: 'forward_seconds_total{job="quick"}', values: 0+6x20}
    alert_rule_test:
      - alertname: SlowForward
        eval_time: 15m
        exp_alerts:
          - exp_labels: {job: slow, severity: critical}
            exp_annotations:
              summary: The forward pass of slow is slow.
              description: It takes 50% of the time.
              what_to_do: Compile the model.
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Puts a distribution with one finding on the path."""

    def put(module, source, attribute):
        site = tmp_path / "site"
        about = site / f"{module}-1.0.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        entry = f"[otel_mlperf.findings]\n{module} = {module}:{attribute}\n"
        (about / "entry_points.txt").write_text(entry)
        (site / f"{module}.py").write_text(source)
        monkeypatch.syspath_prepend(site)
        monkeypatch.delitem(sys.modules, module, raising=False)

    return put


@pytest.fixture
def slow_forward(install):
    """An invented finding: a forward pass that takes over a fifth of the step."""
    install("invented_finding", SOURCE, "SLOW_FORWARD")


@pytest.mark.usefixtures("slow_forward")
def test_it_is_shown_wherever_findings_are(tmp_path, capsys, monkeypatch):
    """In the summary, for programs, in doctor and in a notebook; worse ones stand above others."""
    folder = digits(tmp_path / "runs").write()
    monkeypatch.chdir(tmp_path)

    def told(*words):
        monkeypatch.setattr(sys, "argv", ["otel-mlperf", *words, str(folder)])
        with pytest.raises(SystemExit):
            main()
        return capsys.readouterr().out

    assert "\nfindings  the forward pass takes 22 % of a step · could save up to 11 %" in told(
        "summary"
    )
    found = json.loads(told("summary", "--json"))["findings"]
    assert [one["id"] for one in found] == ["slow_forward", "data_loading"]
    assert found[0]["gain"] == {"low": 0.0, "high": found[0]["evidence"]["share"] / 2, "of": "step"}
    checks = json.loads(told("doctor", "--json"))["checks"]
    assert {"level": "warn", "what": "slow_forward"}.items() <= checks[0].items()
    assert "the forward pass takes 22 % of a step" in render_html(judge_run(read_run(folder)))


@pytest.mark.usefixtures("slow_forward")
def test_its_alert_is_written_and_fires(tmp_path, promtool):
    """Among the package's own, with its threshold, and Prometheus evaluates it."""
    (tmp_path / "rules.yaml").write_text(render_alert_rules(all_rows()))
    (tmp_path / "test.yaml").write_text(textwrap.dedent(FIRES))
    groups = yaml.safe_load((tmp_path / "rules.yaml").read_text())["groups"]
    done = subprocess.run(
        [promtool, "test", "rules", "test.yaml"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert len([rule for group in groups for rule in group["rules"]]) == 1 + len(
        [row for row in TABLE if row.alert]
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise ImportError('no such thing')", "ImportError: no such thing"),
        (
            "IT = 3",
            "TypeError: loading finding source broken:IT: the entry point names 3, not a "
            "FindingSource",
        ),
        (
            "from otel_mlperf.analysis.findings.finding_sources import FindingSource\n"
            "IT = FindingSource(lambda numbers: 1 / 0)",
            "ZeroDivisionError: division by zero",
        ),
    ],
)
def test_one_that_fails_costs_itself_alone(tmp_path, install, source, said):
    """It is said by what and why, and the others are found."""
    install("broken", source, "IT")
    found = judge_run(read_run(digits(tmp_path / "runs").write())).findings

    assert [one.id for one in found] == ["data_loading", "finding_failed"]
    assert found[1].summary == f"evaluating the finding source broken failed: {said}"
    assert found[1].severity == "info"
