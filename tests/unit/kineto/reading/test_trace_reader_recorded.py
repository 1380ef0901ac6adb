"""The columns of recorded traces contain what plain JSON reads from them."""

from __future__ import annotations

import gzip
import json
from decimal import ROUND_HALF_EVEN, Decimal

import numpy as np
import pytest
from kineto_recorded import needs_torch
from kineto_traces import real_traces

from otel_mlperf.kineto.reading.trace_reader import read_trace
from otel_mlperf.kineto.trace_events import NONE

ARGS = {
    "correlation": "correlation",
    "external": "External id",
    "sequence": "Sequence number",
    "forward_thread": "Fwd thread id",
    "device": "device",
    "stream": "stream",
    "bytes": "bytes",
}


def whole_file(path):
    data = path.read_bytes()
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data


def exact_ns(value):
    return int((Decimal(value) * 1000).to_integral_value(ROUND_HALF_EVEN))


def assert_equals_plain_json(path):
    text = whole_file(path)
    plain = json.loads(text, parse_float=Decimal)
    entries = plain["traceEvents"] if isinstance(plain, dict) else plain
    events = [entry for entry in entries if entry["ph"] == "X"]
    base_ns = int(plain.get("baseTimeNanoseconds", 0))

    trace = read_trace(path)

    columns = trace.events
    assert trace.damage == []
    assert trace.counts == {
        phase: sum(entry["ph"] == phase for entry in entries) for phase in trace.counts
    }
    assert sum(trace.counts.values()) == len(entries)
    assert columns.start_ns.tolist() == [base_ns + exact_ns(entry["ts"]) for entry in events]
    assert columns.duration_ns.tolist() == [exact_ns(entry["dur"]) for entry in events]
    assert [trace.names[name] for name in columns.name] == [entry["name"] for entry in events]
    categories = [trace.categories[category] for category in columns.category]
    assert categories == [entry.get("cat", "").lower() for entry in events]
    tracks = [trace.tracks[track][:2] for track in columns.track]
    assert tracks == [(str(entry["pid"]), str(entry["tid"])) for entry in events]
    for column, name in ARGS.items():
        expected = [entry.get("args", {}).get(name, NONE) for entry in events]
        assert getattr(columns, column).tolist() == expected, name
    assert all(text[place : place + 1] == b"{" for place in columns.position)
    assert np.all(np.diff(columns.position) > 0)


def assert_arrows_and_allocations_equal_plain_json(path):
    plain = json.loads(whole_file(path), parse_float=Decimal)
    base_ns = int(plain.get("baseTimeNanoseconds", 0))
    ends = [entry for entry in plain["traceEvents"] if entry["ph"] in "sf"]
    memory = [entry for entry in plain["traceEvents"] if entry["name"] == "[memory]"]

    trace = read_trace(path)

    assert trace.flows.id.tolist() == [entry["id"] for entry in ends]
    assert trace.flows.starts.tolist() == [entry["ph"] == "s" for entry in ends]
    assert trace.flows.time_ns.tolist() == [base_ns + exact_ns(entry["ts"]) for entry in ends]
    assert [trace.flow_kinds[kind] for kind in trace.flows.kind] == [entry["cat"] for entry in ends]
    times = [base_ns + exact_ns(entry["ts"]) for entry in memory]
    assert trace.allocations.time_ns.tolist() == times
    for column, name in (("size", "Bytes"), ("address", "Addr"), ("allocated", "Total Allocated")):
        expected = [entry["args"].get(name, NONE) for entry in memory]
        assert getattr(trace.allocations, column).tolist() == expected


@pytest.mark.parametrize("path", real_traces())
def test_recorded_traces_equal_plain_json(path):
    """Counts and every column of every event equal json.load with times as decimals, exactly."""
    assert_equals_plain_json(path)


@pytest.mark.parametrize("path", real_traces())
def test_recorded_arrows_and_allocations_equal_plain_json(path):
    """Every end of an arrow and every allocation is there with its exact time."""
    assert_arrows_and_allocations_equal_plain_json(path)


@needs_torch
@pytest.mark.parametrize("options", ["", "--stacks"])
def test_traces_of_this_torch_equal_plain_json(recorded_trace, options):
    """Nested parts, threads, backward and compiled regions, as this PyTorch writes them."""
    path = recorded_trace(*options.split())

    assert_equals_plain_json(path)
    assert_arrows_and_allocations_equal_plain_json(path)
