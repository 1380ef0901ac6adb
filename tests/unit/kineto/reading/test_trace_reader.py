"""The columns contain what the file contains, in every form that versions write it."""

from __future__ import annotations

import hashlib
import json

import pytest
from kineto_traces import (
    BASE_NS,
    allocation,
    event,
    flow,
    kernel,
    launch,
    named,
    operator,
    trace_text,
    training_step,
    write_trace,
)

from otel_mlperf.kineto.reading.trace_reader import read_trace
from otel_mlperf.kineto.trace_events import NONE, TraceTrack


@pytest.fixture
def read(tmp_path):
    def read_entries(entries, **options):
        return read_trace(write_trace(tmp_path / "trace.json", entries, **options))

    return read_entries


def names(trace):
    return [trace.names[name] for name in trace.events.name]


def test_events_become_rows_in_the_order_of_the_file(read):
    """Name, category, track, times and arguments stand in the row of their event."""
    trace = read(
        [
            operator("aten::mm", 1.5, 20.25, external=5, **{"Sequence number": 9}),
            kernel("sgemm", 30, 4, 77, stream=20, device=3, bytes=512),
            event("old", 40, 0, category="Runtime", pid="host", tid="a", **{"Fwd thread id": 2}),
        ]
    )

    events = trace.events
    assert names(trace) == ["aten::mm", "sgemm", "old"]
    assert [trace.categories[c] for c in events.category] == ["cpu_op", "kernel", "runtime"]
    assert [trace.tracks[t][:2] for t in events.track] == [
        ("4242", "4242"),
        ("3", "20"),
        ("host", "a"),
    ]
    assert (events.start_ns - BASE_NS).tolist() == [1500, 30_000, 40_000]
    assert events.duration_ns.tolist() == [20_250, 4000, 0]
    assert events.external.tolist() == [5, NONE, NONE]
    assert events.sequence.tolist() == [9, NONE, NONE]
    assert events.correlation.tolist() == [NONE, 77, NONE]
    assert events.device.tolist() == [NONE, 3, NONE]
    assert events.stream.tolist() == [NONE, 20, NONE]
    assert events.bytes.tolist() == [NONE, 512, NONE]
    assert events.forward_thread.tolist() == [NONE, NONE, 2]
    assert trace.counts == {"X": 3}
    assert trace.damage == []


@pytest.mark.parametrize("pointer", ["0x7f3a5c000b60", "0x0", "0X55D0C0FFEE00"])
def test_the_address_of_a_stream_is_no_number_and_no_damage(read, pointer):
    """As ROCm's runtime calls write it; the work on the stream says the stream's number itself."""
    trace = read(
        [
            event("hipLaunchKernel", 1, 2, category="cuda_runtime", stream=pointer, correlation=7),
            kernel("gemm", 5, 2, 7, stream=3),
        ]
    )

    assert trace.damage == []
    assert trace.events.stream.tolist() == [NONE, 3]
    assert trace.events.correlation.tolist() == [7, 7]


def test_numbers_take_no_more_bytes_than_they_need(read):
    """A million events have no sequence number: a byte each says so, and large ids stay whole."""
    trace = read([operator("a", 1, 2, external=70_000), kernel("b", 3, 1, 1 << 40, stream=7)])

    expected = {
        "correlation": (8, [NONE, 1 << 40]),
        "external": (4, [70_000, NONE]),
        "sequence": (1, [NONE, NONE]),
        "forward_thread": (1, [NONE, NONE]),
        "device": (1, [NONE, 0]),
        "stream": (1, [NONE, 7]),
        "bytes": (1, [NONE, NONE]),
    }
    columns = {name: getattr(trace.events, name) for name in expected}
    found = {name: (column.itemsize, column.tolist()) for name, column in columns.items()}
    assert found == expected


def test_other_text_in_place_of_a_number_is_damage(read):
    """A stream that is neither number nor address, and an address that is no stream."""
    trace = read([event("a", 1, 2, stream="main"), event("b", 3, 2, correlation="0x7f")])

    assert [(one.kind, one.occurrences) for one in trace.damage] == [("wrong_type", 2)]


def test_ends_of_arrows_become_columns(read):
    """Both names of both kinds are one, and an end without a number is lost and counted."""
    trace = read(
        [
            flow("s", 7, 1),
            flow("f", 7, 2.5, tid=9),
            flow("s", 8, 3, category="async"),
            flow("f", "9", 4, category="forward_backward"),
            flow("s", None, 5),
        ]
    )

    flows = trace.flows
    assert [trace.flow_kinds[kind] for kind in flows.kind] == ["ac2g", "ac2g", "ac2g", "fwdbwd"]
    assert flows.id.tolist() == [7, 7, 8, 9]
    assert flows.starts.tolist() == [True, False, True, False]
    assert (flows.time_ns - BASE_NS).tolist() == [1000, 2500, 3000, 4000]
    assert [trace.tracks[track].tid for track in flows.track] == ["4242", "9", "4242", "4242"]
    assert len(trace.events) == 0


def test_memory_instants_become_allocations(read):
    """Sizes, addresses and totals are taken; totals that are not written are NONE."""
    trace = read(
        [
            allocation(1, 512, address=4096, allocated=512, reserved=2048),
            allocation(2.001, -512, address=4096, device_type=0, device=NONE),
            {"ph": "i", "name": "Record Window End", "pid": "", "tid": "", "ts": 3, "s": "g"},
        ]
    )

    memory = trace.allocations
    assert (memory.time_ns - BASE_NS).tolist() == [1000, 2001]
    assert memory.size.tolist() == [512, -512]
    assert memory.address.tolist() == [4096, 4096]
    assert memory.allocated.tolist() == [512, NONE]
    assert memory.reserved.tolist() == [2048, NONE]
    assert memory.device_type.tolist() == [1, 0]
    assert memory.device.tolist() == [0, NONE]
    assert trace.counts == {"i": 3}


def test_tracks_have_the_names_of_the_metadata(read):
    """Names may stand after the events, and numbers may be written as texts."""
    trace = read(
        [
            event("a", 1, 1, pid=7, tid=8),
            event("b", 2, 1, pid="7", tid="8"),
            event("c", 3, 1, pid=7, tid=9),
            named("process_name", "python", pid="7"),
            named("thread_name", "pt_autograd_0", pid=7, tid=8),
        ]
    )

    assert trace.tracks == [
        TraceTrack("7", "8", "python", "pt_autograd_0"),
        TraceTrack("7", "9", "python", ""),
    ]
    assert trace.events.track.tolist() == [0, 0, 1]


def test_begin_and_end_are_one_event(read):
    """Pairs nest by track, stand where they begin, and halves without a whole are counted."""

    def half(phase, name, time_us, tid):
        return {"ph": phase, "name": name, "cat": "c", "pid": 1, "tid": tid, "ts": time_us}

    trace = read(
        [
            half("B", "outer", 1, 5),
            half("B", "elsewhere", 2, 6),
            half("B", "inner", 3.5, 5),
            event("x", 4, 1),
            half("E", "", 5.125, 5),
            half("E", "", 9, 5),
            half("E", "", 10, 5),
            half("B", "open", 11, 5),
            half("E", "", 12, 6),
        ]
    )

    assert names(trace) == ["outer", "elsewhere", "inner", "x"]
    assert (trace.events.start_ns - BASE_NS).tolist() == [1000, 2000, 3500, 4000]
    assert trace.events.duration_ns.tolist() == [8000, 10_000, 1625, 1000]
    assert [(item.kind, item.occurrences) for item in trace.damage] == [
        ("unmatched_end", 1),
        ("unmatched_begin", 1),
    ]


@pytest.mark.parametrize(
    ("base_ns", "time", "expected", "is_unix"),
    [
        (BASE_NS, "2413668742269.099", BASE_NS + 2413668742269099, True),
        (None, "1712195495521948.319", 1712195495521948319, True),
        (None, "1669783687464181", 1669783687464181000, True),
        (None, '"1712195495521948.319"', 1712195495521948319, True),
        (None, "1.712195495521948319e15", 1712195495521948319, True),
        (None, "4458676456914.0774", 4458676456914077, False),
        (0, "12.5", 12500, False),
        (None, "-12.5", -12500, False),
    ],
)
def test_every_variant_of_time_is_exact(tmp_path, base_ns, time, expected, is_unix):
    """With and without a base, as number, text or exponent, to the nanosecond."""
    path = tmp_path / "trace.json"
    text = trace_text([event("a", 0.125, 3.001)], base_ns=base_ns)
    path.write_text(text.replace("0.125", time))

    trace = read_trace(path)

    assert trace.events.start_ns.tolist() == [expected]
    assert trace.events.duration_ns.tolist() == [3001]
    assert trace.is_unix_time is is_unix


def test_the_bare_list_is_read(tmp_path):
    """A list without an object around it, whose end the format lets out, has no damage."""
    path = tmp_path / "trace.json"
    for end in ("]", "", ",\n]", ",", "]\n"):
        path.write_text("[" + ",".join(json.dumps(entry) for entry in training_step()) + end)
        trace = read_trace(path)
        assert len(trace.events) == 8
        assert trace.damage == []
        assert not trace.is_unix_time


def test_fields_may_stand_in_any_order_and_layout(tmp_path):
    """Base time first or last, compact or spread, with other lists named alike inside fields."""
    path = tmp_path / "trace.json"
    fields = {
        "otherData": {"traceEvents": [1, 2], "text": '"traceEvents": [{'},
        "traceEvents": training_step(),
        "baseTimeNanoseconds": BASE_NS,
        "more": [{"name": "x"}, {"name": "y"}] * 20_000,
    }
    for order in (list(fields), list(fields)[::-1]):
        for indent in (None, 4):
            path.write_text(json.dumps({key: fields[key] for key in order}, indent=indent))
            trace = read_trace(path)
            assert names(trace)[0] == "ProfilerStep#3"
            assert len(trace.events) == 8
            assert int(trace.events.start_ns[0]) == BASE_NS + 1_000_000
            assert trace.damage == []


@pytest.mark.fault("F90")
@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ({"distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8}}, (3, 8, "nccl")),
        ({"distributedInfo": {"rank": 0}}, (0, None, "")),
        (
            {"distributedInfo": '{"rank": "2", "world_size": "4", "backend": "gloo"}'},
            (2, 4, "gloo"),
        ),
        ({"rank": 5, "world_size": 16}, (5, 16, "")),
        ({"distributedInfo": "what"}, (None, None, "")),
        ({"distributedInfo": {"rank": -1}}, (None, None, "")),
        ({}, (None, None, "")),
    ],
)
def test_ranks_are_found_where_versions_put_them(read, header, expected):
    """Rank, world size and backend of the job, or none of them."""
    trace = read(training_step(), **header)

    assert (trace.rank, trace.world_size, trace.backend) == expected


def test_the_header_and_the_devices_are_kept(read):
    """Scalar fields and device properties are as the file has them."""
    device = {"id": 0, "name": "NVIDIA H100", "clock": 1.5}

    trace = read(training_step(), deviceProperties=[device], with_flops=1, trace_id="AB")

    assert trace.devices == [device]
    assert trace.header["trace_id"] == "AB"
    assert trace.header["with_flops"] == 1
    assert trace.header["baseTimeNanoseconds"] == BASE_NS


def test_the_digest_is_that_of_the_text(tmp_path):
    """The same text has the same digest, packed or not."""
    plain = write_trace(tmp_path / "a.json", training_step())
    packed = write_trace(tmp_path / "b.json.gz", training_step())

    expected = hashlib.sha256(plain.read_bytes()).hexdigest()
    assert read_trace(plain).digest == read_trace(packed).digest == expected


@pytest.mark.fault("F86")
def test_a_field_that_is_too_long_is_left_out(tmp_path):
    """Megabytes beside the events are not read, wherever they stand; the events and times are."""
    path = tmp_path / "trace.json"
    long = json.dumps([{"name": "x"}] * 700_000)
    text = trace_text(training_step())
    for place in ('  "schemaVersion"', '  "displayTimeUnit"'):
        path.write_text(text.replace(place, f'  "more": {long},\n{place}'))
        trace = read_trace(path)
        assert len(trace.events) == 8
        assert int(trace.events.start_ns[0]) == BASE_NS + 1_000_000
        assert [item.kind for item in trace.damage] == ["unreadable_field"]


@pytest.mark.fault("F86")
def test_what_is_written_twice_is_read_as_json_reads_it(tmp_path):
    """Of a key that an event has twice the last counts; two lists of events are both read."""
    path = tmp_path / "trace.json"
    text = trace_text([event("a", 1, 1, correlation=7)])
    text = text.replace('"correlation": 7', '"correlation": 6, "correlation": 7')
    more = json.dumps([event("b", 2, 1)])
    path.write_text(text.replace('"displayTimeUnit"', f'"traceEvents": {more}, "displayTimeUnit"'))

    trace = read_trace(path)

    assert names(trace) == ["a", "b"]
    assert trace.events.correlation.tolist() == [7, NONE]
    assert trace.damage == []


def test_more_categories_than_a_byte_can_tell_share_the_last(read):
    """300 categories are read; 255 of them keep their names."""
    trace = read([event("a", row, 1, category=f"c{row}") for row in range(300)])

    assert trace.events.category.tolist() == [min(row, 255) for row in range(300)]
    assert len(trace.categories) == 256


def test_entries_of_other_phases_are_counted(read):
    """Counters, marks and phases that the format does not have are counted by their letters."""
    entries = [{"ph": phase, "ts": 1, "pid": 1, "tid": 1} for phase in ("C", "n", "C", "Zz", "I")]

    trace = read([*entries, *training_step()])

    assert trace.counts == {"X": 8, "s": 2, "f": 2, "C": 2, "n": 1, "I": 1, "Zz": 1}
    assert len(trace.events) == 8
    assert trace.damage == []


@pytest.mark.fault("F89")
def test_ends_beyond_64_bits_are_lost(read):
    """No start plus duration can overflow in what is computed later."""
    trace = read([event("far", 4_000_000_000_000_000, 9_000_000_000_000_000), event("near", 1, 1)])

    assert names(trace) == ["near"]
    assert [item.kind for item in trace.damage] == ["out_of_range"]


DAY_US = 86_400_000_000
EPOCH_US = 1_615_207_264_000_000


def with_a_lost_time(start_us, duration_us, *, unit_start=EPOCH_US):
    """Ten sound kernels, and one at that time."""
    sound = [kernel("gemm", unit_start + 100 * at, 50, 100 + at) for at in range(10)]
    return [*sound[:5], kernel("lost", start_us, duration_us, 200), *sound[5:]]


@pytest.mark.parametrize(
    ("start_us", "duration_us", "unit_start", "base_ns"),
    [
        (0, 0, EPOCH_US, None),
        (0, EPOCH_US, EPOCH_US, None),
        (-3, 5, EPOCH_US, None),
        (EPOCH_US + 50, EPOCH_US, EPOCH_US, None),
        (-BASE_NS // 1000, 0, 5_000, BASE_NS),
        (0, 0, 3 * DAY_US, BASE_NS),
        (0, 12, 3 * DAY_US, None),
    ],
)
def test_a_record_whose_time_was_never_filled_in_is_lost_and_counted(
    read, start_us, duration_us, unit_start, base_ns
):
    """At 0 far from all others, before 1973 among Unix times, or for years: no time at all."""
    entries = with_a_lost_time(start_us, duration_us, unit_start=unit_start)

    trace = read(entries, base_ns=base_ns)

    assert names(trace) == ["gemm"] * 10
    assert [(item.kind, item.occurrences) for item in trace.damage] == [("no_time", 1)]


@pytest.mark.parametrize("base_ns", [None, BASE_NS])
def test_a_kernel_at_zero_long_before_its_call_has_no_time(read, base_ns):
    """Also where the file counts from a start that is seconds ago; the call itself may be at 0."""
    begin = 3_000_000
    entries = with_a_lost_time(0, 50, unit_start=begin)

    trace = read([*entries, launch(begin + 5, 3, 200)], base_ns=base_ns)
    assert "lost" not in names(trace)
    assert [(item.kind, item.occurrences) for item in trace.damage] == [("no_time", 1)]

    sound = [kernel("early", 0, 50, 1), launch(0.5, 3, 1), launch(0, 3, 100), *entries[:5]]
    assert len(read(sound, base_ns=base_ns).events) == 8


@pytest.mark.parametrize("duration_us", [-0.001, -50, -EPOCH_US])
def test_a_record_that_ends_before_its_start_is_lost_and_counted(read, duration_us):
    """Its end was never filled in: it is in no sum, and the damage names it."""
    trace = read(with_a_lost_time(EPOCH_US + 450, duration_us))

    assert names(trace) == ["gemm"] * 10
    assert [(item.kind, item.occurrences) for item in trace.damage] == [("negative_duration", 1)]
    assert trace.damage[0].example.startswith("lost: -")


@pytest.mark.parametrize(("unit_start", "base_ns"), [(0, None), (10, BASE_NS), (-5, BASE_NS)])
def test_a_record_at_zero_among_others_has_a_time(read, unit_start, base_ns):
    """Where the file counts from its own start, 0 is one of its times."""
    trace = read(with_a_lost_time(0, 0, unit_start=unit_start), base_ns=base_ns)

    assert len(trace.events) == 11
    assert trace.damage == []
