"""A profiled step is in the real Jaeger, under its recorded sections, through the Collector."""

from __future__ import annotations

import json
import sys
from collections import Counter

import pytest
import warm_python
from kineto_traces import event, operator, write_trace
from runs import LIMIT_S, adds_up, environment, run_program
from servers.running import wait_until

from otel_mlperf import names
from otel_mlperf.journal.profiler_windows import read_window

pytestmark = pytest.mark.servers

EVENTS = 200_000


def otel_mlperf(*arguments, runs, **variables):
    """The command line in a process of its own; its standard output."""
    done = warm_python.run(
        [sys.executable, "-m", "otel_mlperf", *map(str, arguments)],
        env=environment(runs, **variables),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def in_jaeger(servers, trace, count):
    """The spans of a trace by id, once there are as many."""
    wait_until(lambda: len(servers.jaeger_trace(trace)) >= count, what=f"{count} spans of {trace}")
    return {span.span_id: span for span in servers.jaeger_trace(trace)}


def test_tree_of_a_profiled_step_is_in_jaeger(tmp_path, servers):
    """``train.step``, ``forward``, ``aten::linear`` and what it calls, as in the run folder."""
    ended = run_program(
        tmp_path / "runs", program="profiled_steps.py",
        OTEL_EXPORTER_OTLP_ENDPOINT=servers.otlp_endpoint,
    ).settled()  # fmt: skip
    (window,) = map(read_window, (ended.folder / "profiles").glob("*.window.json"))

    for step in window.steps:
        rows = ended.rows(f"SELECT * FROM spans WHERE trace_id = '{step.trace}'")
        stored = {row["span_id"]: row for row in rows}
        sent = {key for key, row in stored.items() if row["kind"] != "event" or row["kept"]}
        found = in_jaeger(servers, step.trace, len(sent))
        assert found.keys() == sent
        assert 50 < len(found) <= 2000
        for span_id, span in found.items():
            row = stored[span_id]
            assert (span.name, span.parent_id) == (row["name"], row["parent_id"])
            assert (span.start_ns, span.end_ns) == (row["start_ns"], row["end_ns"])
            assert json.loads(row["attributes"]).items() <= span.attributes.items()
            lacks = window.problem if row["kind"] != "section" else ""
            assert span.attributes.get(names.PROFILER_PROBLEM, "") == lacks
        ways = Counter(way(found, span) for span in found.values())
        assert ways["train.step", "forward", "aten::linear", "aten::addmm"] == 5
        assert any("AddmmBackward0" in names_above and "backward" in names_above
                   for names_above in ways)  # fmt: skip
    for account in ended.accounts()["spans"].values():
        assert adds_up(account)
        assert (account["lost"], account["pending"]) == ({}, 0)


def way(found, span):
    """The names from the root to a span."""
    names_above = [span.name]
    while span.parent_id:
        span = found[span.parent_id]
        names_above.append(span.name)
    return tuple(reversed(names_above))


def test_a_window_is_a_point_in_prometheus(tmp_path, servers):
    """What a window comes to stands at the time of its end, as the run folder has it."""
    ended = run_program(
        tmp_path / "runs", program="profiled_steps.py", OTEL_SERVICE_NAME="profiled-measured",
        OTEL_EXPORTER_OTLP_ENDPOINT=servers.otlp_endpoint,
    ).settled()  # fmt: skip
    (window,) = map(read_window, (ended.folder / "profiles").glob("*.window.json"))
    series = f'{names.WINDOW_EVENTS.prometheus}{{service_name="profiled-measured"}}'

    (events,) = wait_until(lambda: servers.promql(series))
    (at,) = servers.promql(f"timestamp({series})")

    (row,) = ended.rows("SELECT categories FROM windows")
    assert events.value == sum(count for count, _ in json.loads(row["categories"]).values())
    assert at.value == pytest.approx(window.end[0] / 1e9, abs=2e-3)
    assert events.labels["ml_distributed_rank"] == "0"


def test_operators_make_no_series(tmp_path, servers):
    """What the profiler saw is in traces only: the Collector counts the recorded sections alone."""
    ended = run_program(
        tmp_path / "runs", program="profiled_steps.py", OTEL_SERVICE_NAME="profiled-quietly",
        OTEL_EXPORTER_OTLP_ENDPOINT=servers.otlp_endpoint,
    ).settled()  # fmt: skip
    query = 'traces_span_metrics_calls_total{service_name="profiled-quietly"}'

    wait_until(lambda: "run" in {one.labels["span_name"] for one in servers.promql(query)})

    series = {one.labels["span_name"] for one in servers.promql(query)}
    recorded = ended.rows("SELECT DISTINCT name FROM spans WHERE kind = 'section'")
    assert series <= {row["name"] for row in recorded}


@pytest.mark.fault("F83")
def test_window_of_200_000_events_loses_none(tmp_path, servers):
    """A recovered window of that size is stored whole; its budget is sent, nothing is lost."""
    runs = tmp_path / "runs"
    ended = run_program(runs, program="profiled_steps.py", OTEL_MLPERF_AGENT="none")
    (place,) = (ended.folder / "profiles").glob("*.window.json")
    window = read_window(place)
    entries = [
        operator(f"aten::op{number % 50}", 20 + number / 100, 0.009) for number in range(EVENTS)
    ]
    write_trace(place.with_name(window.trace), entries, base_ns=window.start[0])

    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": servers.otlp_endpoint}
    otel_mlperf("doctor", "--recover", ended.folder, runs=runs, **variables)

    (stored,) = ended.rows("SELECT count(*) AS events FROM spans WHERE kind = 'event'")
    assert stored["events"] == EVENTS
    for account in ended.accounts()["spans"].values():
        assert account["created"] > EVENTS
        assert adds_up(account)
        assert (account["lost"], account["pending"]) == ({}, 0)
    for trace, rows in sent_by_trace(ended).items():
        found = in_jaeger(servers, trace, len(rows))
        assert found.keys() == rows
        assert len(found) <= 2000


def sent_by_trace(ended):
    """Trace id to the ids of its spans that go to servers."""
    found = {}
    for row in ended.rows(
        "SELECT trace_id, span_id FROM spans WHERE kind <> 'event' OR kept <> ''"
    ):
        found.setdefault(row["trace_id"], set()).add(row["span_id"])
    return found


def test_every_event_of_200_000_arrives_where_it_is_asked_for(tmp_path, servers):
    """``import --budget none`` sends each event as a span, and each is found."""
    steps, of_step = 200, EVENTS // 200 - 1
    entries = []
    for number in range(steps):
        start = 3000.0 * number
        entries.append(event(f"ProfilerStep#{number}", start, 2990, category="user_annotation"))
        entries += [
            operator(f"aten::op{place % 50}", start + 2.0 * place + 1, 1)
            for place in range(of_step)
        ]
    trace = write_trace(tmp_path / "trace.json.gz", entries)
    # As long as the other commands of these tests: on a busy machine an answer takes its time.
    patient = {"OTEL_EXPORTER_OTLP_TIMEOUT": str(LIMIT_S * 1000)}

    (found,) = json.loads(
        otel_mlperf(
            "import", trace, "--endpoint", servers.otlp_endpoint, "--budget", "none", "--json",
            runs=tmp_path / "runs", **patient,
        )
    )["traces"]  # fmt: skip

    assert (found["events"], found["spans"], found["sent"]) == (EVENTS, EVENTS, EVENTS)
    assert len(found["traces"]) == steps
    for one in found["traces"][::20]:
        spans = in_jaeger(servers, one, of_step + 1)
        assert len(spans) == of_step + 1
        assert all(names.PROFILER_ACTIVITY in span.attributes for span in spans.values())
