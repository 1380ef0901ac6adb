"""Servers and run folder get the same spans of a trace, once."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache

import numpy as np
import pytest
from kineto_traces import PID, event, flow, kernel, launch, operator, real_traces, write_trace
from msgspec.structs import replace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from run_folders import MS, RUN_ID, START, RunFolderBuilder

from otel_mlperf import ids, names
from otel_mlperf.journal.profiler_windows import Window, WindowStep
from otel_mlperf.kineto.convert import convert, requests, sent_rows, store, stored_rows
from otel_mlperf.kineto.spans.budget import Budget
from otel_mlperf.store.table_reader import Store

RESOURCE = {names.SERVICE_NAME: "train"}
BACKWARD = {"Sequence number": 7, "Fwd thread id": 1}


def sent(found, resource=RESOURCE):
    """Span id to span of everything that goes to a server."""
    spans = {}
    for _, body in requests(found, resource):
        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for span in of_resource.scope_spans[0].spans:
                assert span.span_id.hex() not in spans
                spans[span.span_id.hex()] = span
    return spans


def attributes_of(span):
    """The attributes of a span as plain Python."""
    return {pair.key: _plain(pair.value) for pair in span.attributes}


def _plain(value):
    kind = value.WhichOneof("value")
    content = getattr(value, kind)
    return [_plain(one) for one in content.values] if kind == "array_value" else content


def step(start=0.0, number=1):
    """A step with two layers, kernels and a backward operator on another thread."""
    ident = 100 * number
    known = {"External id": ident + 1}
    grid = {"grid": [8, 4, 1], "block": [128, 1, 1], "registers per thread": 22,
            "shared memory": 1024, "est. achieved occupancy %": 50}  # fmt: skip
    return [
        event(f"ProfilerStep#{number}", start, 1000, category="user_annotation"),
        operator("aten::linear", start + 10, 200, external=ident + 1, **{"Sequence number": 7},
                 **{"Input Dims": [[64, 128], [10, 128]], "Input type": ["float", "float"]}),
        operator("aten::addmm", start + 20, 100, external=ident + 1),
        launch(start + 30, 5, ident + 1, **known),
        kernel("sgemm", start + 60, 400, ident + 1, **known, **grid),
        operator("AddmmBackward0", start + 500, 90, external=ident + 2, tid=PID + 1, **BACKWARD),
    ]  # fmt: skip


@cache
def converted(path):
    """A trace as it is converted by default, once for all tests."""
    return convert(path)


def in_store(folder, which="true"):
    """The rows of table ``spans``, by span id."""
    rows = Store(folder).records(f"SELECT * FROM spans WHERE {which}")
    found = {row["span_id"]: row for row in rows}
    assert len(found) == len(rows)
    return found


def agree(span, row):
    """Whether a span that was sent is the one that was stored."""
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (row["trace_id"], row["parent_id"])
    assert span.name == row["name"]
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (row["start_ns"], row["end_ns"])
    assert [(link.trace_id.hex(), link.span_id.hex()) for link in span.links] == [
        tuple(link) for link in json.loads(row["links"])
    ]
    own, known = json.loads(row["attributes"]), attributes_of(span)
    assert own.items() <= known.items()
    shared = {names.SECTION_CATEGORY, names.ML_PHASE, names.THREAD_ID, names.THREAD_NAME}
    assert known.keys() - own.keys() <= shared
    assert known[names.SECTION_CATEGORY] == row["category"]
    assert known.get(names.THREAD_ID) == row["thread_id"]


@pytest.mark.parametrize("path", real_traces())
def test_store_has_what_was_sent_and_all_the_rest(path, tmp_path):
    """Each span sent of a real trace is a row with the same content; every event is a row."""
    found = converted(path)
    store(found, tmp_path)

    rows, spans = in_store(tmp_path, "kept <> ''"), sent(found)
    assert rows.keys() == spans.keys()
    for span_id, span in spans.items():
        agree(span, rows[span_id])
    kinds = Counter(row["kind"] for row in rows.values())
    assert (kinds["event"], kinds["event_rollup"]) == (found.kept, found.roll_ups)
    ((events, ids_, spent),) = Store(tmp_path).rows(
        "SELECT count(*), count(DISTINCT span_id), sum(end_ns - start_ns)::BIGINT FROM spans "
        "WHERE kind = 'event'"
    )
    assert events == ids_ == found.events == len(found.trace.events)
    assert spent == int(found.trace.events.duration_ns.sum())
    ((lost,),) = Store(tmp_path).rows(
        "SELECT count(*) FROM spans WHERE parent_id <> '' "
        "AND parent_id NOT IN (SELECT span_id FROM spans)"
    )
    assert lost == 0


@pytest.mark.parametrize("path", real_traces())
def test_second_import_changes_nothing(path, tmp_path):
    """The same bytes for a server, and one copy in the store, whatever the budget was before."""
    store(convert(path, Budget(100)), tmp_path)
    before = [body for _, body in requests(converted(path), RESOURCE)]

    again = convert(path)
    store(again, tmp_path)

    assert [body for _, body in requests(again, RESOURCE)] == before
    ((rows,),) = Store(tmp_path).rows("SELECT count(*) FROM spans")
    assert rows == again.events + again.roll_ups
    assert len(Store(tmp_path).rows("SELECT digest FROM windows")) == 1


@pytest.mark.parametrize("most", [20_000, 200_000])
@pytest.mark.parametrize("path", real_traces())
def test_budget_of_bytes_holds(path, most):
    """A trace takes no more bytes than allowed, and no time is lost for it."""
    found = convert(path, Budget(spans=None, bytes=most))

    used = Counter()
    for span in sent(found).values():
        used[span.trace_id.hex()] += len(span.SerializeToString())
    assert max(used.values()) <= most
    rolled = found.spans.plan.roll_ups.sum_ns.sum()
    kept = found.trace.events.duration_ns[found.spans.plan.kept].sum()
    assert kept + rolled == found.trace.events.duration_ns.sum()


def test_without_a_run_each_step_is_a_trace(tmp_path):
    """What ran in a step, on any thread, hangs under its annotation; the rest is one more trace."""
    entries = [*step(), *step(2000, 2), operator("aten::between", 1500, 10)]
    found = convert(write_trace(tmp_path / "trace.json", entries))

    spans = sent(found)
    by_trace = {}
    for span in spans.values():
        by_trace.setdefault(span.trace_id, []).append(span)
    trees = sorted(
        sorted((spans[span.parent_span_id.hex()].name if span.parent_span_id else "", span.name)
               for span in of_trace)
        for of_trace in by_trace.values()
    )  # fmt: skip
    inside = [
        ("aten::addmm", "cudaLaunchKernel"),
        ("aten::linear", "aten::addmm"),
    ]
    assert trees[0] == [("", "ProfilerStep#1"), *trees[0][1:]]
    assert trees[1] == [("", "ProfilerStep#2"), *trees[1][1:]]
    assert trees[2] == [("", "aten::between")]
    for number in (1, 2):
        assert set(inside) <= set(trees[number - 1])
        assert (f"ProfilerStep#{number}", "AddmmBackward0") in trees[number - 1]
        assert any(
            name == "sgemm" and above.startswith("aten::") for above, name in trees[number - 1]
        )


def test_spans_say_what_the_trace_says_of_them(tmp_path):
    """Kernels have device, stream, grid and block, operators their shapes, backward a link."""
    found = convert(write_trace(tmp_path / "trace.json", step()))

    spans = {span.name: span for span in sent(found).values()}
    sgemm = attributes_of(spans["sgemm"])
    assert sgemm == {
        names.SECTION_CATEGORY: "kernel",
        names.PROFILER_ACTIVITY: "kernel",
        names.ASYNCHRONOUS: True,
        names.DEVICE_INDEX: 0,
        names.STREAM_ID: 7,
        names.CORRELATION_ID: 101,
        names.KERNEL_GRID: [8, 4, 1],
        names.KERNEL_BLOCK: [128, 1, 1],
        names.KERNEL_REGISTERS: 22,
        names.KERNEL_SHARED_MEMORY: 1024,
        names.KERNEL_OCCUPANCY: 0.5,
    }
    linear = attributes_of(spans["aten::linear"])
    assert linear[names.INPUT_SHAPES] == "[[64, 128], [10, 128]]"
    assert linear[names.SEQUENCE_NUMBER] == 7
    assert linear[names.THREAD_ID] == PID
    assert linear[names.SECTION_CATEGORY] == "operator"
    assert names.ASYNCHRONOUS not in linear
    (link,) = spans["AddmmBackward0"].links
    assert link.span_id == spans["aten::linear"].span_id


def test_collectives_say_what_they_moved(tmp_path):
    """Operation, group, size and bus bandwidth are on the kernel, the latter by its duration."""
    args = {
        "Collective name": "allreduce", "dtype": "Float", "In msg nelems": 1000,
        "Out msg nelems": 1000, "Group size": 4, "Process Group Name": "dp", "Seq": 17,
    }  # fmt: skip
    entries = [
        operator("record_param_comms", 0, 50, external=1),
        launch(10, 5, 1, **{"External id": 1}),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 60, 2, 1, **args),
    ]

    found = convert(write_trace(tmp_path / "trace.json", entries))
    spans = {span.name: span for span in sent(found).values()}

    found = attributes_of(spans["ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"])
    assert found[names.COLLECTIVE_OPERATION] == "all_reduce"
    assert found[names.COLLECTIVE_GROUP] == "dp"
    assert found[names.COLLECTIVE_GROUP_SIZE] == 4
    assert found[names.COLLECTIVE_SIZE] == 4000
    assert found[names.COLLECTIVE_SEQUENCE] == 17
    assert found[names.COLLECTIVE_BUS_BANDWIDTH] == pytest.approx(4000 * 2 * 3 / 4 / 2e-6)


def test_times_are_those_of_the_file(tmp_path):
    """Nanoseconds are kept: 0.001 µs of the file is one of the span."""
    entries = [operator("aten::add", 12.345, 6.789)]

    (span,) = sent(convert(write_trace(tmp_path / "trace.json", entries, base_ns=START))).values()

    assert span.start_time_unix_nano == START + 12_345
    assert span.end_time_unix_nano == START + 12_345 + 6_789


class Run:
    """A run with one recorded step, and the window that profiled it."""

    def __init__(self, folder):
        run = RunFolderBuilder(folder)
        self.trace_id = ids.trace_id(RUN_ID, 0, "train", 4).to_bytes(16, "big").hex()
        common = {"trace_id": self.trace_id, "thread_id": PID, "kept": "profiled"}
        self.step = run.span(4, "train.step", 0, 2 * MS, **common)
        self.forward = run.span(4, "forward", 0, MS, parent_id=self.step, **common)
        self.path = run.write()
        self.window = Window(
            run_id=RUN_ID, restart=0, rank=0, world_size=1, pid=PID, number=0,
            trace="w.pt.trace.json", parent="00000000000000ee",
            steps=[WindowStep("train", 4, 4, self.step, self.trace_id)],
            start=(START, 1000), end=(START + 2 * MS, 1000 + 2 * MS), activities=["cpu"],
        )  # fmt: skip

    def convert(self, entries, **given):
        """The window's trace, whose time begins with the step."""
        place = self.path / "profiles"
        place.mkdir(exist_ok=True)
        path = write_trace(place / self.window.trace, entries, base_ns=START)
        return convert(path, window=self.window, run_folder=self.path, **given)


def test_in_a_run_operators_hang_under_recorded_sections(tmp_path):
    """Their trace is the recorded step's, and their parent the section open on their thread."""
    run = Run(tmp_path)
    entries = [
        operator("aten::linear", 100, 200, external=1),
        launch(110, 5, 1, **{"External id": 1}),
        kernel("sgemm", 150, 3000, 1, **{"External id": 1}),
        operator("aten::later", 1500, 100),
    ]

    found = run.convert(entries)
    store(found, run.path)

    spans = {span.name: span for span in sent(found).values()}
    assert {span.trace_id.hex() for span in spans.values()} == {run.trace_id}
    assert spans["aten::linear"].parent_span_id.hex() == run.forward
    assert spans["aten::later"].parent_span_id.hex() == run.step
    assert spans["sgemm"].parent_span_id == spans["aten::linear"].span_id
    assert spans["sgemm"].end_time_unix_nano > spans["aten::linear"].end_time_unix_nano
    assert attributes_of(spans["aten::linear"])[names.ML_PHASE] == "train"
    rows = in_store(run.path)
    assert len(rows) == 2 + found.events
    for span in spans.values():
        agree(span, rows[span.span_id.hex()])
    assert {row["root_id"] for row in rows.values() if row["kind"] == "event"} == {run.step}


@pytest.mark.fault("F81")
@pytest.mark.parametrize("problem", ["torch finds no GPU here", ""])
def test_spans_say_what_their_window_lacks(tmp_path, problem):
    """Why there are no events of the GPU is on every span sent and every row; else nothing is."""
    run = Run(tmp_path)
    run.window = replace(run.window, problem=problem)
    entries = [operator(f"op{number % 5}", 10.0 * number, 5) for number in range(90)]

    found = run.convert(entries, budget=Budget(20))
    store(found, run.path)

    told = {attributes_of(span).get(names.PROFILER_PROBLEM, "") for span in sent(found).values()}
    rows = [
        json.loads(row["attributes"]) for row in in_store(run.path, "kind <> 'section'").values()
    ]
    assert found.roll_ups
    assert len(rows) == 90 + found.roll_ups
    assert told == {row.get(names.PROFILER_PROBLEM, "") for row in rows} == {problem}
    assert (names.PROFILER_PROBLEM in rows[0]) == bool(problem)


def test_spans_of_an_incomplete_window_say_so(tmp_path):
    """What is missing is on all of them; how much is there on the profiler's own span."""
    whole = event("PyTorch Profiler (0)", 0, 2000, category="Trace", pid="Spans", tid="Profiler")
    arrow = [flow("s", 101, 30.0), flow("f", 101, 60.0, pid=0, tid=7)]
    lost = [entry for entry in step() if entry["cat"] != "kernel"]
    spans = {}
    for name, entries in (("whole", [*step(), *arrow]), ("lost", lost)):
        found = converted(write_trace(tmp_path / f"{name}.json", [*entries, whole]))
        spans[name] = {span.name: attributes_of(span) for span in sent(found).values()}

    window = spans["whole"]["PyTorch Profiler (0)"]
    assert window[names.PROFILER_COMPLETENESS] == 1.0
    assert not any(names.PROFILER_PROBLEM in span for span in spans["whole"].values())
    assert spans["lost"]["PyTorch Profiler (0)"][names.PROFILER_COMPLETENESS] == 0.0
    (problem,) = {span[names.PROFILER_PROBLEM] for span in spans["lost"].values()}
    assert problem.startswith("1 of 1 launched kernels have no record")


def test_outside_steps_the_run_s_trace_has_the_events(tmp_path):
    """What no recorded step was around hangs under the section that exported the window."""
    run = Run(tmp_path)

    (span,) = sent(run.convert([operator("aten::after", 5000, 10)])).values()

    assert span.trace_id == ids.run_trace_id(RUN_ID, 0).to_bytes(16, "big")
    assert span.parent_span_id.hex() == run.window.parent


def test_recorded_sections_take_their_part_of_the_budget(tmp_path):
    """A step's trace with its recorded spans stays within what is allowed for it."""
    run = Run(tmp_path)
    entries = [operator(f"op{number}", 10.0 * number, 5) for number in range(90)]

    found = run.convert(entries, budget=Budget(50, by_trace={run.trace_id: 20}))

    assert found.kept + found.roll_ups <= 18
    assert found.kept + found.rolled_up == 90


def test_recorded_sections_are_not_shown_twice(tmp_path):
    """The annotation that mirrors a section is no span; what is in it hangs under the section."""
    run = Run(tmp_path)
    entries = [
        event("forward", 0.5, 998, category="user_annotation"),
        operator("aten::linear", 100, 200),
    ]

    found = run.convert(entries)

    (span,) = sent(found).values()
    assert (span.name, span.parent_span_id.hex()) == ("aten::linear", run.forward)
    assert found.events == 1


def test_rows_for_a_file_are_what_is_sent(tmp_path):
    """As many, with the same ids, as go to a server."""
    found = convert(write_trace(tmp_path / "trace.json", step()), Budget(4))

    assert {row["span_id"] for row in sent_rows(found)} == sent(found).keys()


def test_requests_are_small_and_count_events(tmp_path):
    """None is above 2 MiB, and their items are the events, without roll-ups."""
    entries = [operator(f"op{number % 1000}" * 20, 2.0 * number, 1) for number in range(30_000)]
    found = convert(write_trace(tmp_path / "trace.json", entries), Budget(spans=None))

    made = list(requests(found, RESOURCE))

    assert len(made) > 1
    assert max(len(body) for _, body in made) <= (2 << 20) + 1024
    assert sum(items for items, _ in made) == found.kept == 30_000
    assert np.all(found.spans.plan.kept)


def test_every_stream_has_a_track_of_its_own_however_many_there_are(tmp_path):
    """Rows of as many streams as fill a byte have as many tracks, none of them a thread's."""
    kernels = [kernel("k", 10 + at, 1, at + 1, stream=at) for at in range(128)]
    rows = stored_rows(convert(write_trace(tmp_path / "t.json", kernels)))

    assert {row["track"] for row in rows if row["kind"] == "event"} == set(range(-129, -1))
