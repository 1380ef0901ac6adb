"""The numbers of recorded traces equal those that plain Python derives from their JSON."""

from __future__ import annotations

import gzip
import json
import math
from collections import defaultdict
from decimal import Decimal

import pytest
from kineto_traces import real_traces

from otel_mlperf.kineto.counting.window_numbers import count
from otel_mlperf.kineto.linking.link import link
from otel_mlperf.kineto.reading.trace_reader import read_trace

WORK = {"kernel", "gpu_memcpy", "gpu_memset"}
ADDED = {"device", "annotation"}
"""Categories of rows among the operators that are none."""
HOST = {"cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "python_function"}
COMMUNICATION = ("ncclKernel", "ncclDevKernel")


def exact_ns(us):
    """Microseconds as they stand in the file, in nanoseconds."""
    return int((Decimal(str(us)) * 1000).to_integral_value())


def crossed(pieces):
    """The time that events share with those that begin before them and end inside them."""
    shared, open_ = 0, []
    for start, end, _ in sorted(pieces, key=lambda piece: (piece[0], -piece[1])):
        open_ = [other for other in open_ if other > start]
        shared += sum(other - start for other in open_ if other < end)
        open_.append(end)
    return shared


class Recorded:
    """A recorded trace: as counted, and as ``json`` and decimals alone read it."""

    def __init__(self, path):
        loaded = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)
        base = loaded.get("baseTimeNanoseconds", 0)
        self.entries = loaded["traceEvents"]
        self.lasting = []
        for entry in self.entries:
            if entry.get("ph") == "X":
                start = base + exact_ns(entry["ts"])
                self.lasting.append((entry, start, start + exact_ns(entry["dur"])))
        trace = read_trace(path)
        self.numbers = count(trace, link(trace))

    def work(self):
        """Start, end, kind, device and stream of all device work."""
        for entry, start, end in self.lasting:
            if entry["cat"].lower() in WORK:
                kind = "copy" if entry["cat"].lower() != "kernel" else "compute"
                if entry["name"].startswith(COMMUNICATION):
                    kind = "communication"
                yield start, end, kind, entry["args"]["device"], entry["args"]["stream"]


@pytest.fixture(scope="module", params=real_traces())
def recorded(request):
    """Each recorded trace."""
    return Recorded(request.param)


def swept(pieces):
    """How long each set of kinds was on, by walking all starts and ends in order."""
    points = sorted(
        [(start, 1, kind) for start, _, kind in pieces]
        + [(end, -1, kind) for _, end, kind in pieces]
    )
    on, spent, before = defaultdict(int), defaultdict(int), None
    for time, change, kind in points:
        if before is not None:
            spent[frozenset(name for name, open_ in on.items() if open_)] += time - before
        on[kind] += change
        before = time
    return spent


def test_totals_are_the_plain_sums_of_the_file(recorded):
    """Category by category and name by name: counts, sums, extremes and quantiles."""
    lengths = defaultdict(list)
    for entry, start, end in recorded.lasting:
        lengths[entry["cat"].lower(), entry["name"]].append(end - start)
    numbers = recorded.numbers
    found = {
        (one.category, one.name): one
        for one in numbers.totals
        if one.what in {"kernel", "operator", "annotation", "call", "python", "other"}
        and one.category not in ADDED
    }

    assert set(found) == set(lengths)
    for key, mine in lengths.items():
        mine.sort()
        figures = found[key]
        assert (figures.count, figures.total_ns) == (len(mine), sum(mine)), key
        assert (figures.min_ns, figures.max_ns) == (mine[0], mine[-1]), key
        assert figures.p50_ns == mine[math.ceil(len(mine) * 0.5) - 1], key
        assert figures.p95_ns == mine[math.ceil(len(mine) * 19 / 20) - 1], key
    by_category = defaultdict(lambda: (0, 0))
    for (category, _), mine in lengths.items():
        many, spent = by_category[category]
        by_category[category] = (many + len(mine), spent + sum(mine))
    assert numbers.categories == dict(by_category)


def test_devices_are_busy_as_a_sweep_over_all_events_finds(recorded):
    """Busy, gaps, each kind of work, what they share and what is exposed, by device and stream."""
    numbers = recorded.numbers
    work = list(recorded.work())

    assert {one.device for one in numbers.devices} == {piece[3] for piece in work}
    assert {(one.device, one.stream) for one in numbers.streams} == {piece[3:] for piece in work}
    for one in [*numbers.devices, *numbers.streams]:
        mine = [
            piece[:3] for piece in work if piece[3] == one.device and one.stream in {None, piece[4]}
        ]
        spent = swept(mine)
        first, last = min(start for start, _, _ in mine), max(end for _, end, _ in mine)
        busy = sum(time for on, time in spent.items() if on)
        talk = sum(time for on, time in spent.items() if "communication" in on)
        assert (one.count, one.busy_ns) == (len(mine), busy)
        assert one.gap_ns == last - first - busy
        assert one.idle_ns == one.window_ns - busy
        assert one.compute_ns == sum(time for on, time in spent.items() if "compute" in on)
        assert one.copy_ns == sum(time for on, time in spent.items() if "copy" in on)
        assert one.communication_ns == talk
        shared = sum(time for on, time in spent.items() if {"compute", "communication"} <= on)
        assert one.compute_communication_ns == shared
        assert one.exposed_communication_ns == talk - shared
        assert one.host_wait_ns + one.device_wait_ns + one.unknown_wait_ns == one.gap_ns


def test_self_times_of_the_host_cover_each_thread_once(recorded):
    """The self times of a thread's events add up to the time that any of them covers.

    Where two events cross, neither in the other, both may have the time that they share. Frames of
    Python are passed over.
    """
    threads = defaultdict(list)
    for entry, start, end in recorded.lasting:
        if entry["cat"].lower() in HOST - {"python_function"}:
            threads[entry["pid"], entry["tid"]].append((start, end, "on"))
    covered = sum(spent for pieces in threads.values() for on, spent in swept(pieces).items() if on)
    host = {"operator", "annotation", "call"}
    totals = [one for one in recorded.numbers.totals if one.category not in ADDED]
    found = sum(one.self_ns for one in totals if one.what in host)

    assert covered <= found <= covered + sum(map(crossed, threads.values()))


def test_device_time_of_operators_adds_up(recorded):
    """What operators launched, and what no operator is known to have launched, is all of it."""
    numbers = recorded.numbers
    launched = sum(one.device_ns for one in numbers.totals if one.what == "operator")
    total = sum(one.total_ns for one in numbers.totals if one.what == "kernel")
    by_stream = sum(one.total_ns for one in numbers.totals if one.what == "stream")

    assert total == by_stream == sum(end - start for start, end, *_ in recorded.work())
    assert launched == total


def test_launch_delays_are_those_of_equal_correlations(recorded):
    """Start of the work less end of the call with its number, found by a dictionary."""
    numbers = recorded.numbers
    calls = {
        entry["args"]["correlation"]: end
        for entry, _, end in recorded.lasting
        if entry["cat"] in {"cuda_runtime", "cuda_driver"}
    }
    for one in numbers.devices:
        delays = sorted(
            start - calls[entry["args"]["correlation"]]
            for entry, start, _ in recorded.lasting
            if entry["cat"].lower() in WORK
            and entry["args"]["device"] == one.device
            and entry["args"]["correlation"] in calls
        )
        assert one.launches == len(delays)
        assert one.early == sum(delay < 0 for delay in delays)
        if delays:
            assert one.delay_p95_ns == max(0, delays[math.ceil(len(delays) * 19 / 20) - 1])
            assert one.delay_max_ns == max(0, delays[-1])


def test_waits_are_told_apart_by_when_the_call_began(recorded):
    """Piece by piece in order of time, with a dictionary of calls by their number."""
    calls, work = {}, defaultdict(list)
    for entry, start, end in recorded.lasting:
        if entry["cat"] in {"cuda_runtime", "cuda_driver"}:
            calls[entry["args"]["correlation"]] = start
        if entry["cat"].lower() in WORK:
            work[entry["args"]["device"]].append((start, end, entry["args"]["correlation"]))
    for one in recorded.numbers.devices:
        waits, busy_until = {"host": 0, "device": 0, "unknown": 0}, None
        for start, end, correlation in sorted(work[one.device]):
            if busy_until is not None and start > busy_until:
                call = calls.get(correlation)
                late = "host" if call is not None and call > busy_until else "device"
                waits["unknown" if call is None else late] += start - busy_until
            busy_until = max(end, busy_until or end)
        assert waits == {
            "host": one.host_wait_ns,
            "device": one.device_wait_ns,
            "unknown": one.unknown_wait_ns,
        }


def test_the_allocator_is_as_its_instants_say(recorded):
    """Peaks and sums of every device, from the [memory] entries themselves."""
    numbers = recorded.numbers
    made = defaultdict(list)
    for entry in recorded.entries:
        if entry.get("name") == "[memory]":
            args = entry["args"]
            made[args["Device Type"], args["Device Id"]].append(args)

    rows = defaultdict(list)
    for one in numbers.memory:
        rows[one.device_type, one.device].append(one)
    assert set(rows) == set(made)
    for key, of_device in rows.items():
        mine = made[key]
        assert of_device[-1].change_bytes == sum(args["Bytes"] for args in mine)
        assert max(one.peak_bytes for one in of_device) == max(a["Total Allocated"] for a in mine)
        assert max(one.reserved_bytes for one in of_device) == max(
            a["Total Reserved"] for a in mine
        )
