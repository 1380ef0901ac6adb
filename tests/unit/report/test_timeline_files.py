"""Timeline files contain what happened: read by the published protobuf schema, and as JSON."""

from __future__ import annotations

import json
from collections import Counter, defaultdict

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackDescriptor, TrackEvent
from run_folders import MS, START, RunFolderBuilder, S
from timeline_run import ARROWS, CPUS, LINES, MARKS, RANK_0, RANK_1, THREAD_ID, timeline_run

from otel_mlperf import names
from otel_mlperf.analysis.steps.step_selection import select
from otel_mlperf.errors import NoSuchStep
from otel_mlperf.report.chrome import ChromeFormat
from otel_mlperf.report.perfetto import PerfettoFormat
from otel_mlperf.report.timeline_files import Counts, write_timeline
from otel_mlperf.store.run_folders import read_run

COUNTERS = LINES["rank 0 · node1"][-4:]


def written(path, form, **wanted):
    """The file of a run, as bytes, and what was counted."""
    pieces = []
    counts = write_timeline(select(read_run(path), **wanted), form, pieces.append)
    return b"".join(pieces), counts


class Perfetto:
    """A Perfetto trace, decoded."""

    def __init__(self, data):
        trace = Trace.FromString(data)
        self.tracks = {}
        self.names = defaultdict(dict)
        self.events = defaultdict(list)
        for packet in trace.packet:
            if packet.HasField("track_descriptor"):
                self.tracks[packet.track_descriptor.uuid] = packet.track_descriptor
            for kind, entries in packet.interned_data.ListFields():
                for entry in entries:
                    self.names[kind.name][entry.iid] = entry.name
            if packet.HasField("track_event"):
                self.events[packet.track_event.track_uuid].append((packet.timestamp, packet))
        assert trace.packet[0].sequence_flags == 1  # interned names begin anew

    def lines(self):
        """Names of the lines below each rank, as they are sorted."""
        parents = {d.uuid: d.name for d in self.tracks.values() if not d.parent_uuid}
        below = defaultdict(list)
        for one in sorted(self.tracks.values(), key=lambda d: d.sibling_order_rank):
            if one.parent_uuid:
                below[parents[one.parent_uuid]].append(one.name)
        return {name: below[name] for name in parents.values()}

    def name(self, packet):
        """What an event is called."""
        return self.names["event_names"][packet.track_event.name_iid]

    def slices(self):
        """Line, parent, name, begin and duration in ms, of each slice; and its packet."""
        found = []
        for uuid, events in self.events.items():
            opened = []
            for time, packet in events:
                if packet.track_event.type == TrackEvent.TYPE_SLICE_BEGIN:
                    opened.append((time, packet))
                elif packet.track_event.type == TrackEvent.TYPE_SLICE_END:
                    begin, first = opened.pop()
                    parent = self.name(opened[-1][1]) if opened else None
                    line = self.tracks[uuid].name
                    times = ((begin - START) // MS, (time - begin) // MS)
                    found.append(((line, parent, self.name(first), *times), first))
            assert opened == []
        return found

    def arguments(self, packet):
        """The annotations of an event."""
        return {
            self.names["debug_annotation_names"][one.name_iid]: getattr(
                one, one.WhichOneof("value")
            )
            for one in packet.track_event.debug_annotations
        }

    def counter(self, name):
        """Descriptor and points of a counter, in ms."""
        [track] = [one for one in self.tracks.values() if one.name == name]
        points = [
            ((time - START) // MS, packet.track_event.double_counter_value)
            for time, packet in self.events[track.uuid]
        ]
        return track.counter, points


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of the run."""
    return timeline_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def perfetto(run):
    """Its Perfetto trace."""
    return Perfetto(written(run, PerfettoFormat())[0])


@pytest.fixture(scope="module")
def chrome(run):
    """Its Chrome trace."""
    return json.loads(written(run, ChromeFormat())[0])


def test_a_perfetto_trace_has_every_slice_nested_on_its_line(perfetto):
    """Steps, sections, operators and kernels; balanced, and in the order of time on each line."""
    assert sorted(map(str, (one for one, _ in perfetto.slices()))) == sorted(
        map(str, RANK_0 + RANK_1)
    )
    for events in perfetto.events.values():
        times = [time for time, _ in events]
        assert times == sorted(times)


def test_a_perfetto_trace_has_its_lines_in_order(perfetto):
    """Below each rank: threads with what was rolled up of them, streams, counters."""
    assert perfetto.lines() == LINES
    tops = [one for one in perfetto.tracks.values() if not one.parent_uuid]
    assert {one.child_ordering for one in tops} == {TrackDescriptor.EXPLICIT}


def test_counters_have_units_and_values(perfetto):
    """Bytes as they were read; processor time as its growth per second up to the next reading."""
    counter, points = perfetto.counter("process.memory.usage")
    assert (counter.unit, points) == (3, [(0, 1e9), (50, 2e9), (150, 1.5e9)])
    counter, points = perfetto.counter("process.cpu.time per second (user)")
    assert counter.unit_name == "s/s"
    assert points == [(at, pytest.approx(value)) for at, value in CPUS]
    assert perfetto.counter("loss (train)")[1] == [(190, 0.5)]


def test_the_time_of_each_step_is_a_counter(run):
    """From when the step began."""
    found = Perfetto(written(run, PerfettoFormat(), rank=1)[0]).counter("step duration (train)")

    assert (found[0].unit_name, found[1]) == ("ms", [(0, 110.0), (110, 90.0)])


def test_a_perfetto_trace_has_the_marks_of_the_program(perfetto):
    """As instants on a line of their own, with the step that they were set in."""
    marks = [(packet, uuid) for uuid, events in perfetto.events.items() for _, packet in events
             if packet.track_event.type == TrackEvent.TYPE_INSTANT]  # fmt: skip

    assert [
        (perfetto.tracks[uuid].name, None, perfetto.name(packet),
         (packet.timestamp - START) // MS, 0)
        for packet, uuid in marks
    ] == MARKS  # fmt: skip
    assert perfetto.arguments(marks[0][0]) == {"phase": "train", "step": 1}


def test_a_mark_alone_is_a_timeline(tmp_path):
    """It begins there, whatever comes later."""
    run = RunFolderBuilder(tmp_path)
    run.mark("begin", 7 * MS, 0)

    data, counts = written(run.write(), ChromeFormat())

    assert counts == Counts(lines=1, slices=0, points=0, instants=1)
    assert json.loads(data)["baseTimeNanoseconds"] == START + 7 * MS


def test_arrows_lead_from_operators_to_kernels(perfetto):
    """And to sections on other threads; each has one begin and one end."""
    ends = defaultdict(list)
    for (_, _, name, *_), packet in sorted(perfetto.slices(), key=lambda one: one[1].timestamp):
        for flow in packet.track_event.flow_ids:
            ends[flow].append(name)

    assert sorted(map(tuple, ends.values())) == ARROWS


def test_arguments_are_those_of_the_span(perfetto):
    """Of a root with its trace id, to be found in a server."""
    [kernel] = [packet for one, packet in perfetto.slices() if one[2] == "gemm"]
    [step] = [packet for one, packet in perfetto.slices() if one[2] == "train.step"]
    [row] = [packet for one, packet in perfetto.slices() if one[2:4] == ("train 1", 100)]

    assert perfetto.arguments(kernel) == {
        names.ASYNCHRONOUS: True,
        names.DEVICE_INDEX: 0,
        names.STREAM_ID: 7,
    }
    assert perfetto.arguments(step) == {"trace_id": f"{2:032x}"}
    assert perfetto.arguments(row) == {
        "duration_ns": 100 * MS,
        "self_ns": 0,
        "kept": "profiled",
        "trace_id": f"{2:032x}",
    }


def chrome_lines(chrome):
    """Process and line of each pid and tid."""
    told = [event for event in chrome["traceEvents"] if event["ph"] == "M"]
    processes = {e["pid"]: e["args"]["name"] for e in told if e["name"] == "process_name"}
    lines = {(e["pid"], e["tid"]): e["args"]["name"] for e in told if e["name"] == "thread_name"}
    return processes, lines


def test_a_chrome_trace_has_every_slice(chrome):
    """With times to the nanosecond: microseconds after the base, with three decimals."""
    processes, lines = chrome_lines(chrome)
    slices = [event for event in chrome["traceEvents"] if event["ph"] == "X"]

    found = []
    for one in slices:
        line = lines[one["pid"], one["tid"]]
        line = processes[one["pid"]] if line == "steps" else line
        found.append((line, one["name"], one["ts"] / 1000, one["dur"] / 1000))
    wanted = [(line, name, at, lasted) for line, _, name, at, lasted in RANK_0 + RANK_1]
    assert sorted(found) == sorted(wanted)
    assert chrome["baseTimeNanoseconds"] == START
    assert {one["pid"] for one in slices} == {0, 1}


def test_a_chrome_trace_sorts_its_lines(chrome):
    """By the index that viewers go by."""
    _, lines = chrome_lines(chrome)
    index = {
        lines[e["pid"], e["tid"]]: e["args"]["sort_index"]
        for e in chrome["traceEvents"]
        if e["name"] == "thread_sort_index" and e["pid"] == 0
    }

    without_counters = [line for line in LINES["rank 0 · node1"] if line not in COUNTERS]
    assert sorted(index, key=index.get) == ["steps", *without_counters]


def test_a_chrome_trace_has_the_marks_of_the_program(chrome):
    """As instants of their line alone, with the step that they were set in."""
    _, lines = chrome_lines(chrome)
    marks = [event for event in chrome["traceEvents"] if event["ph"] == "i"]

    assert [(lines[e["pid"], e["tid"]], None, e["name"], e["ts"] / 1000, 0) for e in marks] == MARKS
    assert [(e["s"], e["args"]) for e in marks] == [("t", {"phase": "train", "step": 1})]


def test_a_chrome_trace_has_counters_and_arrows(chrome):
    """An arrow leads from the slice with its id to each that is bound to it."""
    slices = [event for event in chrome["traceEvents"] if event["ph"] == "X"]
    causes = {one["bind_id"]: one["name"] for one in slices if one.get("flow_out")}
    arrows = [(causes[one["bind_id"]], one["name"]) for one in slices if one.get("flow_in")]
    counters = Counter(e["name"] for e in chrome["traceEvents"] if e["ph"] == "C")

    assert sorted(arrows) == ARROWS
    assert counters == dict(zip(COUNTERS, (2, 3, 4, 1), strict=True))


def test_nanoseconds_survive(tmp_path):
    """Also where the base of a Chrome trace is today's."""
    run = RunFolderBuilder(tmp_path)
    run.step(0, 0, {"forward": 1_234_567})
    run.step(1, 2_000_000_001, {"forward": 1})
    path = run.write()

    data = Perfetto(written(path, PerfettoFormat())[0])
    text, _ = written(path, ChromeFormat())

    steps = next(iter(data.events.values()))
    assert [time - START for time, _ in steps] == [0, 1_234_567, 2_000_000_001, 2_000_000_002]
    assert b'"ts":2000000.001,"dur":0.001' in text


@pytest.mark.fault("S18")
def test_names_of_any_kind_are_written(tmp_path):
    """Lone surrogates have no form in UTF-8; lists and numbers beyond 64 bits are shown as JSON."""
    run = RunFolderBuilder(tmp_path)
    given = {"text": "a\ud800b", "shape": [[1, 2], []], "large": 2**70, "loss": 0.5, "none": None}
    run.span(0, "größe\n", 0, MS, attributes=json.dumps(given), status="error")
    path = run.write()

    data = Perfetto(written(path, PerfettoFormat())[0])
    chrome = json.loads(written(path, ChromeFormat())[0])

    [(one, packet)] = data.slices()
    assert one[2] == "größe\n"
    own = {"trace_id": f"{1:032x}", "status": "error"}
    assert data.arguments(packet) == own | {
        "text": "a\ufffdb",
        "shape": "[[1, 2], []]",
        "large": str(2**70),
        "loss": 0.5,
        "none": "null",
    }
    [event] = [event for event in chrome["traceEvents"] if event["ph"] == "X"]
    assert event["args"] == own | given | {"text": "a\ufffdb"}


def test_steps_and_ranks_are_chosen(run):
    """A step with all of its trace, and the readings meanwhile; a rank without the others."""
    one = Perfetto(written(run, PerfettoFormat(), numbers=(1, 1))[0])
    other, counts = written(run, PerfettoFormat(), rank=1)

    assert {name for (_, _, name, *_), _ in one.slices()} == {
        name for _, _, name, *_ in RANK_0 if name != "train 0"
    }
    assert one.counter("process.memory.usage")[1] == [(150, 1.5e9)]
    assert [found for found, _ in Perfetto(other).slices()] == RANK_1
    assert counts == Counts(lines=2, slices=2, points=2, instants=0)


def test_a_step_that_never_was_is_named(run):
    """With those that there are."""
    with pytest.raises(NoSuchStep) as error:
        select(read_run(run), (7, 9))

    assert str(error.value) == (
        "looking for train steps 7 to 9 of run 3f2a: not found; completed steps: train 0 to 1"
    )


def test_parents_come_first_where_times_are_equal(tmp_path):
    """Whatever their ids: of three in each other with the same times, none is on another line."""
    run = RunFolderBuilder(tmp_path)
    for name, span, parent in (("inner", 1, 2), ("outer", 3, 0), ("middle", 2, 3)):
        ids = {"span_id": f"{span:016x}", "parent_id": f"{parent:016x}" if parent else ""}
        run.span(0, name, 0, MS, root_id="", **ids)

    data = Perfetto(written(run.write(), PerfettoFormat())[0])

    assert [one[:3] for one, _ in data.slices()] == [
        ("MainThread", "middle", "inner"),
        ("MainThread", "outer", "middle"),
        ("MainThread", None, "outer"),
    ]


def test_ranks_have_as_many_digits_as_the_highest(tmp_path):
    """Viewers sort by name."""
    run = RunFolderBuilder(tmp_path)
    for rank in (2, 10):
        run.step(0, 0, {"forward": MS}, rank=rank)
        run.step(0, 0, {"forward": MS}, rank=rank, restart=1)
        run.process(MS, rank=rank)

    data = Perfetto(written(run.write(), PerfettoFormat())[0])

    assert sorted(data.lines()) == [
        "rank 02 · node1",
        "rank 02 · restart 1",
        "rank 10 · node1",
        "rank 10 · restart 1",
    ]
    assert THREAD_ID not in data.tracks


def test_what_is_on_no_thread_has_a_track_of_its_own(tmp_path):
    """The profiler's own span, of which no thread is known."""
    run = RunFolderBuilder(tmp_path)
    nowhere = {"kind": "event", "track": -3, "thread": "", "thread_id": None}
    run.span(0, "PyTorch Profiler (0)", 0, MS, **nowhere)

    data = Perfetto(written(run.write(), PerfettoFormat())[0])

    assert [one[0] for one, _ in data.slices()] == ["unknown thread"]


def test_a_stream_is_known_by_its_device(tmp_path):
    """Annotations do not name it, but are on its stream; other windows number streams anew."""
    run = RunFolderBuilder(tmp_path)
    for window, (first, second) in enumerate(((-3, -4), (-4, -5))):
        for device, track in ((0, first), (1, second)):
            on = {"track": track, "thread": "stream 7 ", "thread_id": None, "kind": "event"}
            on |= {"category": names.KERNEL, "root_id": "", "thread": f"stream {7 + device} "}
            at = json.dumps({names.DEVICE_INDEX: device})
            run.span(0, "annotation", window * S, 9 * MS, **on)
            run.span(0, "gemm", window * S + MS, MS, attributes=at, **on)

    data = Perfetto(written(run.write(), PerfettoFormat())[0])

    assert Counter(one[:3] for one, _ in data.slices()) == {
        (f"device {device} · stream {7 + device}", parent, name): 2
        for device in (0, 1)
        for parent, name in ((None, "annotation"), ("annotation", "gemm"))
    }


def test_only_what_a_device_did_has_an_arrow_from_an_operator(tmp_path):
    """An annotation of a step may be around thousands of operators of another thread."""
    run = RunFolderBuilder(tmp_path)
    event = {"kind": "event", "category": names.OPERATOR}
    step = run.span(0, "ProfilerStep#1", 0, 9 * MS, track=1, thread_id=1, **event)
    run.span(0, "aten::add", MS, MS, track=2, thread_id=2, parent_id=step, **event)

    data = Perfetto(written(run.write(), PerfettoFormat())[0])

    assert [list(packet.track_event.flow_ids) for _, packet in data.slices()] == [[], []]


@pytest.mark.parametrize("form", [ChromeFormat, PerfettoFormat])
def test_no_name_in_a_file_commands_a_terminal_or_turns_text(tmp_path, form):
    """Whoever prints the file, or a viewer that shows it as it is, is not commanded."""
    run = RunFolderBuilder(tmp_path)
    bad = "a\x1b[2J\u202egpj\u2066\x9b\x7fé"
    run.step(0, 0, {"forward": 5 * MS}, kept="first")
    run.span(0, bad, MS, MS)
    run.mark(bad, MS, 0, rank=0)
    run.process(S)

    data, _ = written(run.write(), form())

    assert b"a\x1b[2J" not in data
    for char in "\u202e\u2066\x9b":
        assert char.encode() not in data
    assert "gpj???é".encode() in data
