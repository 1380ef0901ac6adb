"""Is the list of metrics complete, readable, and the page of the docs up to date?"""

from __future__ import annotations

from pathlib import Path

from otel_mlperf import names
from otel_mlperf.report.metrics import groups, metric_rows, render_markdown, render_metrics

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


def test_the_page_of_the_docs_is_what_the_vocabulary_says():
    """It is generated: ``otel-mlperf metrics --markdown > docs/metrics.md``."""
    assert PAGE.read_text() == render_markdown()


def test_every_metric_is_in_one_group():
    """None is left out, and none is listed twice."""
    listed = [metric for _, metrics in groups() for metric in metrics]

    assert sorted(listed) == sorted(names.METRICS)


def test_the_page_has_a_row_for_each_metric():
    """With unit, kind, labels and the name in Prometheus; tables stay tables."""
    lines = render_markdown().splitlines()
    rows = [line for line in lines if line.startswith("| `")]

    assert len(rows) == len(names.METRICS)
    assert all(row.replace("\\|", "").count("|") == 7 for row in rows)
    assert (
        "| `linux.psi.stall.time` | `linux_psi_stall_time_seconds_total` | counter | `s` | "
        "`linux.psi.resource`, `linux.psi.kind` | Time in which tasks of the host waited for the "
        "resource: cpu, memory, io. |"
    ) in rows


def test_the_terminal_shows_each_metric_within_its_width():
    """Lines are cut nowhere, and only a single long word is wider than the terminal."""
    shown = render_metrics(width=60)

    assert all(f"  {metric.name}  {metric.instrument}" in shown for metric in names.METRICS)
    indented = [line for line in shown.splitlines() if line.startswith("    ")]
    assert all(len(line) <= 60 or " " not in line.strip() for line in indented)
    assert "\x1b" not in shown
    assert "\x1b" in render_metrics(color=True)
    assert render_metrics(unicode=False).isascii()


def test_programs_get_every_field():
    """Rows have what the vocabulary has, and the name in Prometheus."""
    (row,) = [row for row in metric_rows() if row["name"] == "system.cpu.time"]

    assert row == {
        "name": "system.cpu.time",
        "unit": "s",
        "instrument": "counter",
        "meaning": names.SYSTEM_CPU_TIME.meaning,
        "labels": ("cpu.mode", "cpu.logical_number"),
        "prometheus": "system_cpu_time_seconds_total",
    }
