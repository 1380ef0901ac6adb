"""Ranks that were merged into one file are kept apart."""

from __future__ import annotations

import pytest
from kineto_traces import PID, event, flow, kernel, launch, operator, write_trace

from otel_mlperf.kineto.counting.window_numbers import count
from otel_mlperf.kineto.linking.link import link
from otel_mlperf.kineto.reading.trace_reader import read_trace

STEP_US = 100


def rank_entries(rank):
    """Five operators with a kernel each; each rank is a little later, and longer on its device."""
    entries = []
    for at in range(1, 6):
        begin = STEP_US * at + 3 * rank
        entries += [
            operator(f"op{rank}", begin, 20, external=at),
            launch(begin + 5, 5, at, **{"External id": at}),
            kernel("gemm", begin + 30, 10 + rank, at, **{"External id": at}),
        ]
    return entries


def tagged(entry, rank):
    return entry | {"pid": f"[rank {rank}] {entry['pid']}"}


def numbered(entry, rank):
    return entry | {"pid": entry["pid"] + 1_000_000 * rank}


def numbers_of(tmp_path, entries):
    trace = read_trace(write_trace(tmp_path / "t.json", entries))
    return trace, count(trace, link(trace))


@pytest.mark.parametrize("rename", [tagged, numbered])
@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_each_rank_has_a_device_and_its_own_launches(tmp_path, rename, is_sorted, ranks):
    """Though correlations, External ids, devices and streams of all ranks are the same."""
    entries = [rename(entry, rank) for rank in range(ranks) for entry in rank_entries(rank)]
    if is_sorted:
        entries.sort(key=lambda entry: entry["ts"])

    trace, numbers = numbers_of(tmp_path, entries)

    busy = {device.device: device.busy_ns // 1000 for device in numbers.devices}
    assert busy == {rank: 5 * (10 + rank) for rank in range(ranks)}
    assert [device.host_wait_ns > 0 for device in numbers.devices] == [True] * ranks
    assert numbers.completeness.losses == []
    on_gpu = {total.name: total.device_ns // 1000 for total in numbers.totals if total.device_ns}
    assert on_gpu == {f"op{rank}": 5 * (10 + rank) for rank in range(ranks)}
    assert trace.events.correlation.max() == 5
    # Spans, and what is counted from them, bear the number of the device.
    kernels = [name == "gemm" for name in map(trace.names.__getitem__, trace.events.name)]
    assert set(trace.events.device[kernels].tolist()) == set(range(ranks))


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("is_device_last", [False, True])
def test_ranks_whose_lists_were_joined_have_a_device_each(tmp_path, ranks, is_device_last):
    """Only the host's process differs: rows of devices are told apart by the order of the file."""
    entries = []
    for rank in range(ranks):
        of_rank = [_joined(entry, rank) for entry in rank_entries(rank)]
        of_rank += [
            flow("s", at, STEP_US * at + 3 * rank + 5, pid=PID + rank) for at in range(1, 6)
        ]
        of_rank += [flow("f", at, STEP_US * at + 3 * rank + 30, pid=0, tid=7) for at in range(1, 6)]
        entries += sorted(of_rank, key=lambda e: e["pid"] == 0) if is_device_last else of_rank

    _, numbers = numbers_of(tmp_path, entries)

    busy = {device.device: device.busy_ns // 1000 for device in numbers.devices}
    assert busy == {rank: 5 * (10 + rank) for rank in range(ranks)}
    assert numbers.completeness.losses == []
    on_gpu = {total.name: total.device_ns // 1000 for total in numbers.totals if total.device_ns}
    assert on_gpu == {f"op{rank}": 5 * (10 + rank) for rank in range(ranks)}


def _joined(entry, rank):
    return entry | {"pid": PID + rank} if entry["pid"] == PID else entry


def test_ranks_that_cannot_be_told_apart_are_reported_as_such(tmp_path):
    """Sorted by time with shared rows of devices: no record is said to be wrong or there twice."""
    entries = [_joined(entry, rank) for rank in (0, 1) for entry in rank_entries(rank)]

    _, numbers = numbers_of(tmp_path, sorted(entries, key=lambda entry: entry["ts"]))

    assert [loss.kind for loss in numbers.completeness.losses] == ["ranks"]
    assert numbers.completeness.words.startswith(
        "10 of 10 device records belong to several ranks in one file, whose devices share a number"
    )


def test_a_second_process_with_calls_of_its_own_is_no_second_rank(tmp_path):
    """Numbers that nobody shares are left alone, and so are calls without a number."""
    counters = [
        event("mlx5_0", STEP_US * at, 0, category="privateuse1_runtime", pid=PID + 9)
        for at in range(1, 6)
    ]
    others = [launch(STEP_US, 5, 77) | {"pid": PID + 1}]

    _, numbers = numbers_of(tmp_path, [*counters, *others, *rank_entries(0)])

    assert [(device.device, device.count) for device in numbers.devices] == [(0, 5)]
    assert numbers.devices[0].launches == 5
