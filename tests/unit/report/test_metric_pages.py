"""The list of metrics is complete and readable, and its page in the docs is up to date."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from by_hand import agent_folder

import otel_mlperf as om
from otel_mlperf import names
from otel_mlperf.agent.derivation.cell_values import user_metric
from otel_mlperf.agent.intake.tail import Tail
from otel_mlperf.agent.lifecycle.agent_loop import Agent
from otel_mlperf.agent.model.agent_options import Options
from otel_mlperf.agent.model.sampling import Policy
from otel_mlperf.report.metric_pages import (
    groups,
    list_metrics,
    own_examples,
    render_markdown,
    render_metrics,
)

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


def test_the_page_of_the_docs_is_what_the_vocabulary_says():
    """It is generated: ``otel-mlperf reference metrics --markdown > docs/metrics.md``."""
    assert PAGE.read_text() == render_markdown()


def test_every_metric_is_in_one_group():
    """None is left out, and none is listed twice."""
    listed = [metric for _, metrics in groups() for metric in metrics]

    assert sorted(listed) == sorted(names.METRICS)


def test_the_page_has_a_row_for_each_metric():
    """With unit, kind, labels and the name in Prometheus; tables stay tables."""
    lines = render_markdown().partition("\n## Your own")[0].splitlines()
    rows = [line for line in lines if line.startswith("| `")]

    assert len(rows) == len(names.METRICS)
    assert all(row.replace("\\|", "").count("|") == 8 for row in rows)
    assert (
        "| `linux.psi.stall.time` | `linux_psi_stall_time_seconds_total` | counter | `s` | "
        "`linux.psi.resource`, `linux.psi.kind` | host basic | Time in which tasks of the host "
        "waited for the resource: cpu, memory, io. |"
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
    (row,) = [row for row in list_metrics().metrics if row.name == "system.cpu.time"]

    assert msgspec.structs.asdict(row) == {
        "name": "system.cpu.time",
        "unit": "s",
        "instrument": "counter",
        "meaning": names.SYSTEM_CPU_TIME.meaning,
        "labels": ("cpu.mode", "cpu.logical_number"),
        "prometheus": "system_cpu_time_seconds_total",
        "read_by": {"host": ["basic", "comprehensive"]},
    }


def test_sources_and_levels_are_shown():
    """Each metric that a source reads says so, on the terminal and on the page."""
    page, shown = render_markdown(), render_metrics()

    assert "  system.cpu.time  counter, s  host basic, more at comprehensive\n" in shown
    assert "  hw.temperature  gauge, Cel  host detailed; gpu basic, more at detailed\n" in shown
    assert "| `hw.energy` | `hw_energy_joules_total` | counter | `J` |" in page
    assert "`hw.type` | gpu basic | Energy consumed" in page
    assert "  ml.training.steps  counter, {step}\n" in shown


def test_the_examples_of_a_programs_own_metrics_are_true(tmp_path, monkeypatch):
    """Each piece of code makes the metric, and so the name in Prometheus, that is said of it."""
    monkeypatch.setattr("otel_mlperf.recorder.api.instruments._instruments", {})
    with om.start("x", dir=tmp_path, agent="none", console=False, readings="none") as run:
        for code in own_examples():
            eval(code, {"om": om})
        journal = run._recorder.journal
        tail = Tail(Path(journal.path).parent, {journal.path: journal.buffer})
        agent = Agent(
            agent_folder(run._recorder.meta), tail, Options(policy=Policy(), sources=frozenset())
        )
        agent.tick()
        agent.mark()
    (rank,) = agent._state.ranks.values()
    made = {
        name: user_metric(name, unit, kind).prometheus for name, (unit, kind) in rank.user.items()
    }
    recorded = {series.metric for series in rank.series.values()}

    told = {metric.name: metric.prometheus for metric in own_examples().values()}
    assert told.items() >= made.items()
    assert len(made) == 4  # a value of log() has no unit and is a gauge
    assert told.keys() == {name for name in recorded if name.startswith("ml.user.")}
    assert all(f"    {name}\n" in render_metrics() for name in told.values())


@pytest.mark.parametrize(
    ("name", "unit", "instrument", "prometheus"),
    [
        ("ml.user.img-read", "By", "counter", "ml_user_img_read_bytes_total"),
        ("ml.user.read-bytes", "By", "counter", "ml_user_read_bytes_total"),
        ("ml.user.a total.x", "By", "counter", "ml_user_a_x_bytes_total"),
        ("ml.user.hit__rate", "1", "gauge", "ml_user_hit_rate_ratio"),
        ("ml.user.decode-time", "ms", "histogram", "ml_user_decode_time_milliseconds"),
        ("ml.user.x-", "{item}", "gauge", "ml_user_x"),
    ],
)
def test_any_name_is_translated_as_prometheus_does(name, unit, instrument, prometheus):
    """As Prometheus' own translator of OTLP names gives them."""
    assert names.Metric(name, unit, instrument, "").prometheus == prometheus
