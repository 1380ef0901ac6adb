"""Exporters of the OpenTelemetry SDK get what an OTLP server gets, and harm nobody."""

from __future__ import annotations

import json
import threading

import pytest
from by_hand import accounts, adds_up
from fault_server import plain_points, plain_spans
from opentelemetry.sdk.trace.export import SpanExportResult

from otel_mlperf.agent.delivery.destination import Batch, Delivered, Refused, SpanItem, TryLater
from otel_mlperf.agent.delivery.sdk_destination import EXPORTER_FAILED, SdkDestination
from otel_mlperf.agent.model.sampling import Policy
from otel_mlperf.otlp.endpoint_settings import read_settings

ALL = Policy(trace_every=1)
SPANS, METRICS = "opentelemetry_traces_exporter", "opentelemetry_metrics_exporter"
REMOTE = 0x300

COLLECTING = '''
"""An exporter that appends what it gets to a file, as the SDK's own encoder writes it."""

import os

from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult


def append(encoded):
    with open(os.environ["ACME_FILE"], "a") as file:
        file.write(encoded.SerializeToString().hex() + "\\n")


class Spans(SpanExporter):
    def export(self, spans):
        append(encode_spans(spans))
        return SpanExportResult.SUCCESS


class Metrics(MetricExporter):
    def export(self, metrics_data, timeout_millis=10_000, **kwargs):
        append(encode_metrics(metrics_data))
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis=10_000):
        return True

    def shutdown(self, timeout_millis=30_000, **kwargs):
        pass
'''


@pytest.fixture
def collected(install, tmp_path, monkeypatch):
    """Installs an exporter; gives what it got, as bytes of requests."""

    def put(group, attribute):
        install("acme_exporter", COLLECTING, group, acme=attribute)
        monkeypatch.setenv("ACME_FILE", str(tmp_path / "acme.txt"))
        return lambda: map(bytes.fromhex, (tmp_path / "acme.txt").read_text().split())

    return put


def test_spans_are_those_that_a_server_gets(program, agent_of, run_folder, server, collected):
    """Every field, of every span, and an account of its own."""
    bodies = collected(SPANS, "Spans")
    failed = {"e": ["ValueError", "no such layer", "stack"], "w": 3, "a": {"lang": "de", "n": [1]}}
    linked = {"l": [[5, (1 << 64) - 1, 1 << 63, 0x200, {"why": "batch"}]]}
    step = program.begin_step(0)
    program.section("forward", 2, 5, parent=step, root=step, error=True, payload=failed)
    program.section("backward", 5, 8, parent=step, root=step, payload=linked)
    program.end_step(step, 0, 10)
    program.stop(20)
    traces = read_settings({}, "traces", server.url)[0]
    agent_of(program, traces=traces, exporters={"spans": ["acme"]}).run()

    assert by_name(map(plain_spans, bodies())) == by_name([server.spans()])
    account = accounts(run_folder)["spans"]["acme"]
    assert account["delivered"] == program.sections == 4
    assert adds_up(account)


def by_name(groups):
    """Spans by name; the SDK's encoder does not say that a trace is sampled."""
    found = {}
    for span in (span for group in groups for span in group):
        span["flags"] &= REMOTE
        for link in span["link_fields"]:
            link[1] &= REMOTE
        found[span["name"]] = json.loads(json.dumps(span))
    return found


def test_metrics_are_those_that_a_server_gets(program, agent_of, run_folder, server, collected):
    """But for the zero with which a series begins: a request has one point of a series."""
    bodies = collected(METRICS, "Metrics")
    for i in range(20):
        program.step(i * 10)
    program.stop(250)
    metrics = read_settings({}, "metrics", server.url)[0]
    agent_of(program, metrics=metrics, explicit=True, exporters={"metrics": ["acme"]}).run()

    ours = [json.loads(json.dumps(point)) for body in bodies() for point in plain_points(body)]
    theirs = [point for point in server.points() if "value" in point]
    own = "otel_mlperf.items"  # counts of deliveries: at the end each has one more of the other's
    ours, theirs = (
        sorted((p for p in points if not p["name"].startswith(own)), key=str)
        for points in (ours, theirs)
    )
    latest = {}
    for point in theirs:
        latest[point["name"], str(point["attributes"]), str(point.get("resource"))] = point
    assert len(ours) >= len(latest)
    for point in latest.values():
        assert point in ours, point["name"]
    assert adds_up(accounts(run_folder)["metrics"]["acme"])


def test_console_goes_to_a_file(program, agent_of, run_folder):
    """Where nobody sees what the agent prints; every kept span is in it."""
    for i in range(3):
        program.step(i * 10)
    program.stop(50)
    agent_of(program, exporters={"spans": ["console"], "metrics": ["console"]}).run()

    (spans,) = run_folder.glob("agent/*/console-spans.txt")
    printed = spans.read_text()
    assert printed.count('"name": "forward"') == 3
    assert printed.count('"parent_id"') == program.sections
    (metrics,) = run_folder.glob("agent/*/console-metrics.txt")
    assert "ml.training.step.duration" in metrics.read_text()
    for signal in ("spans", "metrics"):
        account = accounts(run_folder)[signal]["console"]
        assert account["delivered"] == account["created"]


@pytest.mark.parametrize("prints", [True, False])
def test_console_is_stdout_only_where_somebody_reads_it(
    program, agent_of, run_folder, install, capsys, prints
):
    """As with ``otel-mlperf serve agent``, which runs in the foreground."""
    install("strange_exporter", STRANGE, SPANS, printing="Printing")
    program.stop(50)
    agent_of(program, exporters={"spans": ["printing"]}, prints=prints).run()

    assert capsys.readouterr().out == ("['run']\n" if prints else "")
    files = [path.read_text() for path in run_folder.glob("agent/*/console-spans.txt")]
    assert files == ([] if prints else ["['run']\n"])


STRANGE = '''
"""Exporters that do what they should not."""

import sys
import threading

from opentelemetry.sdk.trace.export import SpanExportResult


class Printing:
    def __init__(self):
        self.out = sys.stdout

    def export(self, spans):
        print([span.name for span in spans], file=self.out, flush=True)
        return SpanExportResult.SUCCESS

    def shutdown(self):
        pass


class Raising:
    def export(self, spans):
        print("I raise")
        raise RuntimeError("no such project")

    def shutdown(self):
        raise RuntimeError("never opened")


class Hanging:
    def export(self, spans):
        threading.Event().wait()


def hanging_at_its_start():
    threading.Event().wait()


def unmade():
    raise LookupError("no key")
'''


def test_bad_exporters_cost_no_other(program, agent_of, run_folder, install, server, caplog):
    """A missing or broken one loses its own, one that raises keeps it; none is sent by OTLP."""
    waiting = {"raising": "Raising", "hanging": "Hanging", "slow": "hanging_at_its_start"}
    install("strange_exporter", STRANGE, SPANS, unmade="unmade", **waiting)
    program.step(0)
    program.stop(20)
    listed = [*waiting, "unmade", "missing", "console", "store"]
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": server.url, "OTEL_TRACES_EXPORTER": "missing"}
    traces = read_settings(environ, "traces")[0]
    agent = agent_of(program, traces=traces, exporters={"spans": listed}, drain_timeout_s=0.0)
    agent.tick()
    agent.mark()
    settled = ["spans/console", "spans/unmade", "spans/missing", "spans/sdk_store"]
    with agent._outbox.changed:
        while any(map(agent._outbox.has, settled)):
            agent._outbox.changed.wait()
    agent.run()

    spans = accounts(run_folder)["spans"]
    assert spans["store"]["delivered"] == program.sections
    assert all(spans[name]["pending"] == program.sections for name in waiting)
    assert spans["console"]["delivered"] == program.sections
    assert all(spans[name]["lost"] == {"not_loaded": 4} for name in ("unmade", "missing"))
    assert "sdk_store" in spans
    assert all(map(adds_up, spans.values()))
    assert "otlp" not in spans
    assert server.spans() == []
    for words in ("no key", "no installed package provides an entry point missing"):
        assert words in caplog.text


def test_exporter_that_only_the_run_folder_names_gets_nothing(program, agent_of, run_folder):
    """Its batches wait until the caller names it."""
    program.stop(20)
    exporters = {"spans": ["console"], "metrics": ["console"]}
    withheld = frozenset({"spans/console", "metrics/console"})
    agent_of(program, exporters=exporters, withheld=withheld, drain_timeout_s=0.0).run()

    for signal in exporters:
        account = accounts(run_folder)[signal]["console"]
        assert account["pending"] == account["created"] > 0
    assert not [*run_folder.glob("agent/*/console-*")]


class Picky:
    """Takes spans but for those called bad; none at all while it is away."""

    def __init__(self, *bad: str) -> None:
        self.bad, self.is_away = bad, False
        self.taken: list[str] = []

    def export(self, spans):
        names = [span.name for span in spans]
        if self.is_away or set(names) & set(self.bad):
            return SpanExportResult.FAILURE
        self.taken += names
        return SpanExportResult.SUCCESS


def batch_of(*names, number=1):
    made = [
        SpanItem(rank=0, restart=0, trace_id="1" * 32, span_id="1" * 16, name=name, category="x",
                 start_ns=1, end_ns=2)
        for name in names
    ]  # fmt: skip
    return Batch(number=number, signal="spans", items=len(made), spans=made)


def test_what_an_exporter_refuses_is_found_and_lost_alone():
    """After three failures: all else of its batch arrives, once."""
    exporter = Picky("c", "f")
    destination = SdkDestination("acme", "spans", lambda: exporter)
    batch = batch_of(*"abcdefg")

    assert all(isinstance(destination.accept(batch), TryLater) for _ in range(2))
    assert destination.accept(batch) == Delivered({EXPORTER_FAILED: 2})
    assert sorted(exporter.taken) == [*"abdeg"]


@pytest.mark.parametrize("names", ["abc", "a"])
def test_outage_loses_nothing(names):
    """However long: no item is taken, so the backend is away."""
    exporter = Picky()
    destination = SdkDestination("acme", "spans", lambda: exporter)
    exporter.is_away = True
    batch = batch_of(*names)
    assert all(isinstance(destination.accept(batch), TryLater) for _ in range(100))

    exporter.is_away = False
    assert destination.accept(batch) == Delivered()
    assert exporter.taken == [*names]


def test_one_item_that_is_always_refused_does_not_hold_the_rest():
    """An exporter that has taken others gives it up in the end."""
    exporter = Picky("b")
    destination = SdkDestination("acme", "spans", lambda: exporter)
    assert destination.accept(batch_of("a")) == Delivered()

    verdicts = [destination.accept(batch_of("b", number=2)) for _ in range(60)]
    assert all(isinstance(verdict, TryLater) for verdict in verdicts[:-1])
    assert verdicts[-1] == Refused(EXPORTER_FAILED)
    assert isinstance(destination.accept(batch_of("b", number=3)), TryLater)


class Hanging(Picky):
    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()

    def export(self, spans):
        self.go_on.wait()
        return super().export(spans)


def test_exporter_that_hangs_is_not_waited_for():
    """Past its deadline; once it returns, its batch counts, and is not exported again."""
    exporter = Hanging()
    destination = SdkDestination("acme", "spans", lambda: exporter, deadline_s=0.01)
    batch = batch_of("a", "b")
    verdict = destination.accept(batch)
    assert isinstance(verdict, TryLater)
    assert "has not returned" in verdict.reason

    exporter.go_on.set()
    while isinstance(destination.accept(batch), TryLater):
        pass
    assert exporter.taken == ["a", "b"]


def test_batch_given_up_while_its_exporter_hangs_is_not_taken_for_the_next():
    """The next one is exported after it, and has a verdict of its own."""
    exporter = Hanging()
    destination = SdkDestination("acme", "spans", lambda: exporter, deadline_s=0.01)
    destination.accept(batch_of("a", number=1))
    exporter.go_on.set()
    while isinstance(destination.accept(batch_of("b", number=2)), TryLater):
        pass
    assert exporter.taken == ["a", "b"]
