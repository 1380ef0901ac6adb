"""Records with ids that cannot be theirs are detected."""

from __future__ import annotations

import pytest
from kineto_traces import event, flow, kernel, launch, operator, write_trace

from otel_mlperf.kineto.counting.completeness import find_completeness
from otel_mlperf.kineto.linking.link import link
from otel_mlperf.kineto.reading.trace_reader import read_trace


def losses_of(tmp_path, entries):
    """What is said of these entries."""
    trace = read_trace(write_trace(tmp_path / "t.json", entries))
    found = find_completeness(trace, link(trace)).losses
    return [(loss.kind, loss.missing, loss.of) for loss in found]


def pairs(numbers, *, name="cudaLaunchKernel", arrows=False):
    """A launch and its kernel for each number."""
    entries = []
    for number in numbers:
        at = 100.0 * number
        entries += [launch(at, 5, number, name=name), kernel("gemm", at + 20, 40, number)]
        if arrows:
            entries += [flow("s", number, at), flow("f", number, at + 20, pid=0, tid=7)]
    return entries


@pytest.mark.fault("F89")
def test_work_launched_before_the_window_has_no_launch_and_lacks_none(tmp_path):
    """Its correlation is lower than that of every call; a higher one was launched inside."""
    before = [kernel("gemm", 50.0 + at, 1, 3 + at) for at in range(3)]
    assert losses_of(tmp_path, before + pairs(range(10, 20))) == []

    inside = [kernel("gemm", 2_500, 40, 25)]
    assert losses_of(tmp_path, inside + pairs(range(10, 20))) == [("launch", 1, 11)]


def test_work_that_an_operator_here_asked_for_was_launched_here(tmp_path):
    """Whatever its correlation: no call at all is left."""
    entries = []
    for number in range(1, 5):
        entries += [
            operator("aten::mm", 100.0 * number, 50, external=1000 + number),
            kernel("gemm", 100.0 * number + 20, 40, number, **{"External id": 1000 + number}),
        ]

    assert losses_of(tmp_path, entries) == [("launch", 4, 4)]


def test_numbers_that_have_changed_places_are_not_taken_for_missing_work(tmp_path):
    """Two kernels bear the numbers of each other; their arrows still end where they began."""
    entries = pairs(range(1, 11), arrows=True)
    kernels = [entry for entry in entries if entry.get("cat") == "kernel"]
    for at, number in ((2, 7), (6, 3)):
        kernels[at]["args"]["correlation"] = number

    assert losses_of(tmp_path, entries) == [("correlation", 2, 10)]


def test_a_copy_is_not_what_a_launch_of_a_kernel_asks_for(tmp_path):
    """CUDA answers each call in its own kind; ROCm copies with kernels."""
    copy = [launch(5_000, 9, 99, name="cudaMemcpyAsync"), kernel("gemm", 5_010, 9, 99)]
    assert losses_of(tmp_path, pairs(range(1, 10)) + copy) == [("correlation", 1, 10)]

    copy[0]["name"] = "hipMemcpyAsync"
    assert losses_of(tmp_path, pairs(range(1, 10)) + copy) == []


def test_a_batch_of_work_under_one_launch_is_no_contradiction(tmp_path):
    """Where every launch has its answer, a second record is more of the same."""
    batch = [event("Memcpy DtoD", 910.0 + at, 5, category="gpu_memcpy", pid=0, tid=7,
                   correlation=9, device=0, stream=7) for at in (0, 10)]  # fmt: skip
    entries = [*pairs(range(1, 9)), launch(900, 5, 9, name="cudaMemcpyBatchAsync"), *batch]

    assert losses_of(tmp_path, entries) == []


def test_a_file_without_any_arrow_was_not_written_by_the_profiler(tmp_path):
    """Other tools draw none; with the profiler's own span around the window they are missing."""
    span = event("PyTorch Profiler (0)", 0, 5_000, category="Trace", pid="Spans", tid="x")

    assert losses_of(tmp_path, pairs(range(1, 11))) == []
    assert losses_of(tmp_path, [*pairs(range(1, 11)), span]) == [("arrow", 10, 10)]
    assert losses_of(tmp_path, [*pairs(range(1, 11), arrows=True), span]) == []


@pytest.mark.fault("F89")
def test_half_arrows_of_autograd_are_counted(tmp_path):
    """One end without the other joins nothing."""
    entries = [operator("aten::mm", 10.0 * at, 5, external=at) for at in range(1, 9)]
    arrows = [flow("s", at, 10.0 * at, category="fwdbwd") for at in (1, 2)]
    arrows.append(flow("f", 1, 50.0, category="fwdbwd"))

    assert losses_of(tmp_path, entries + arrows) == [("arrow", 1, 2)]


NEWER = {"copy": "gpu_memcpy", "memset": "gpu_memset", "kernel": "kernel", "call": "cuda_runtime"}
OLDER = {"copy": "Memcpy", "memset": "Memset", "kernel": "Kernel", "call": "Runtime"}


def of_each_kind(categories, number=10):
    """A copy, a memset and a kernel that answer their calls, under these categories."""
    calls = {"copy": "cudaMemcpyAsync", "memset": "cudaMemsetAsync", "kernel": "cudaLaunchKernel"}
    entries = []
    for at, (kind, name) in enumerate(calls.items()):
        begin, own = 100.0 * (number + at), number + at
        entries.append(event(name, begin, 5, category=categories["call"], correlation=own))
        where = {"pid": 0, "tid": 7, "device": 0, "stream": 7, "correlation": own}
        entries.append(event(kind, begin + 20, 40, category=categories[kind], **where))
    return entries


@pytest.mark.parametrize("categories", [NEWER, OLDER])
def test_records_of_either_schema_answer_the_call_of_their_kind(tmp_path, categories):
    """Older versions of the profiler write other categories for the same records."""
    assert losses_of(tmp_path, of_each_kind(categories)) == []


@pytest.mark.parametrize("categories", [NEWER, OLDER])
def test_a_copy_that_answers_the_launch_of_a_kernel_bears_a_foreign_correlation(
    tmp_path, categories
):
    """In either schema."""
    entries = of_each_kind(categories)
    entries[-1]["cat"] = categories["copy"]

    assert losses_of(tmp_path, entries) == [("correlation", 1, 3)]
