"""The spans of a run folder become the requests that the agent would have sent."""

from __future__ import annotations

import json

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from run_folders import MS, START, RunFolderBuilder, S

from otel_mlperf import names
from otel_mlperf.analysis.steps.step_selection import Selected
from otel_mlperf.replay.span_requests import count_spans, lines, requests, resource_of
from otel_mlperf.store.run_folders import read_run
from otel_mlperf.store.table_reader import Store


@pytest.fixture
def run(tmp_path):
    """Two ranks, three spans, and two events of a window, of which one had room in its budget."""
    builder = RunFolderBuilder(tmp_path)
    builder.process(S, rank=0, service="digits-service", instance_id="instance-0")
    root = builder.span(2, "train.step", 0, 50 * MS)
    builder.span(2, "forward", 0, 20 * MS, parent_id=root)
    builder.span(2, "aten::mm", 0, MS, parent_id=root, kind="event", kept="first")
    builder.span(2, "aten::add", 0, MS, parent_id=root, kind="event", kept="")
    builder.span(2, "train.step", 0, 40 * MS, rank=1)
    return read_run(builder.write())


def decoded(run):
    """The resource's keys of each request, with the names and ids of its spans."""
    for count, body in requests(run, Store(run.path)):
        [resource] = ExportTraceServiceRequest.FromString(body).resource_spans
        spans = [(span.name, span.span_id.hex()) for span in resource.scope_spans[0].spans]
        assert len(spans) == count
        yield {pair.key for pair in resource.resource.attributes}, spans


def test_what_had_no_room_in_a_budget_is_not_sent(run):
    """The store holds every event of a window; servers get those that the agent would send."""
    assert count_spans(Store(run.path)) == 4
    assert sorted(name for _, spans in decoded(run) for name, _ in spans) == [
        "aten::mm",
        "forward",
        "train.step",
        "train.step",
    ]


def test_spans_keep_their_ids_rank_by_rank(run):
    """A server that has a span already has it once."""
    ids = [sorted(span for _, span in spans) for _, spans in decoded(run)]

    assert ids == [[f"{number:016x}" for number in (1, 2, 3)], [f"{5:016x}"]]
    assert ids == [sorted(span for _, span in spans) for _, spans in decoded(run)]


def test_a_rank_without_a_process_has_the_resource_of_its_run(run):
    """It was killed before it could say more: what the run's own file knows is not left out."""
    store = Store(run.path)

    assert resource_of(run, store, 0, 0)["service.name"] == "digits-service"
    assert resource_of(run, store, 1, 0) == names.SDK | {
        "os.type": "linux",
        "service.name": "digits",
        "ml.run.id": "3f2a9c0d17e84b55",
        "ml.run.name": "digits",
        "ml.distributed.rank": 1,
        "ml.distributed.restart_count": 0,
    }


def test_lines_hold_the_same_spans_as_requests(run):
    """OTLP/JSON beside protobuf."""
    told = list(lines(Selected(run, Store(run.path))))

    spans = [
        span["name"]
        for _, text in told
        for line in text.splitlines()
        for resource in json.loads(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]
    assert sum(count for count, _ in told) == len(spans) == 4
    assert sorted(spans) == sorted(name for _, of in decoded(run) for name, _ in of)


def test_lines_and_requests_have_the_marks_of_the_run(tmp_path):
    """Those of its rank alone, as events of the run's span."""
    builder = RunFolderBuilder(tmp_path)
    builder.span(None, "run", 0, S, category="run", rank=1)
    builder.mark("lr halved", 7 * MS, 3, rank=1)
    builder.mark("frozen", 8 * MS, 4)
    run = read_run(builder.write())

    [(_, body)] = requests(run, Store(run.path))
    [resource] = ExportTraceServiceRequest.FromString(body).resource_spans
    [(_, text)] = lines(Selected(run, Store(run.path)))
    [told] = json.loads(text)["resourceSpans"][0]["scopeSpans"][0]["spans"]
    at = START + 7 * MS
    assert [(e.time_unix_nano, e.name) for e in resource.scope_spans[0].spans[0].events] == [
        (at, "lr halved")
    ]
    assert told["events"] == [
        {"timeUnixNano": str(at), "name": "lr halved", "attributes": [
            {"key": "ml.training.step", "value": {"intValue": "3"}},
            {"key": "ml.phase", "value": {"stringValue": "train"}},
        ]}
    ]  # fmt: skip
    assert "droppedEventsCount" not in told
