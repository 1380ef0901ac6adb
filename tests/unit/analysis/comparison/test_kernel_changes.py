"""The changed kernel is named, with its section, and whether shape, count or speed changed.

Traces are taken into runs by the package's own importer: made ones of two steps, and recorded ones
in which one thing is changed.
"""

from __future__ import annotations

import copy
import gzip
import json
import os
from pathlib import Path

import pytest
from kineto_traces import event, kernel, launch, operator, write_trace

from otel_mlperf.analysis.comparison.comparison import compare_runs
from otel_mlperf.analysis.comparison.run_measures import measure_run, measure_window
from otel_mlperf.errors import NoSuchWindow
from otel_mlperf.importing.trace_import import Importer
from otel_mlperf.report.comparison_table import render_comparison
from otel_mlperf.store.run_folders import find_run


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """Takes traces into a run of that name; gives its folder."""
    monkeypatch.setenv("OTEL_MLPERF_DIR", str(tmp_path / "runs"))

    def take(name, *paths):
        for path in paths:
            importer = Importer("", None)
            importer.put_into(name)
            importer.take(path, None)
        return find_run(name)

    return take


def step(begin, number, layers):
    """A step of layers: section, operator, inputs, kernel, µs a call, calls."""
    entries, at = [], begin
    on_device = begin + 50
    for place, (section, name, inputs, kernel_name, us, calls) in enumerate(layers):
        first = at
        for call in range(calls):
            correlation = number * 1000 + place * 100 + call + 1
            dims = {"Input Dims": inputs} if inputs else {}
            entries += [
                operator(name, at + 1, 8, **dims),
                launch(at + 3, 4, correlation),
                kernel(kernel_name, on_device, us, correlation, grid=[len(str(inputs)), 1, 1]),
            ]
            at += 10
            on_device += us
        if section:
            entries.append(event(section, first, at - first, category="user_annotation"))
        at += 1
    length = max(at, on_device) - begin + 1
    return [event(f"ProfilerStep#{number}", begin, length, category="user_annotation"), *entries]


SMALL, WIDE = [[64, 128], [128, 128]], [[64, 128], [128, 512]]
LAYERS = [
    ("forward", "aten::addmm", SMALL, "gemm_64", 50, 4),
    ("forward", "aten::gelu", SMALL, "elementwise<gelu>", 10, 4),
    ("backward", "aten::mm", SMALL, "gemm_64", 60, 8),
    ("optimizer", "aten::add_", [], "elementwise<add>", 5, 8),
]
MADE = {
    "a call takes longer": (
        {0: ("forward", "aten::addmm", SMALL, "gemm_64", 80, 4)},
        ("gemm_64", "forward", "speed"),
    ),
    "of two sections the one": (
        {2: ("backward", "aten::mm", SMALL, "gemm_64", 80, 8)},
        ("gemm_64", "backward", "speed"),
    ),
    "more calls": (
        {1: ("forward", "aten::gelu", SMALL, "elementwise<gelu>", 10, 12)},
        ("elementwise<gelu>", "forward", "count"),
    ),
    "a wider layer": (
        {0: ("forward", "aten::addmm", WIDE, "gemm_64", 150, 4)},
        ("gemm_64", "forward", "shape"),
    ),
    "a wider layer, for which another kernel is chosen": (
        {0: ("forward", "aten::addmm", WIDE, "gemm_256", 150, 4)},
        ("gemm_256", "forward", "shape"),
    ),
    "another kernel for the same": (
        {2: ("backward", "aten::mm", SMALL, "gemm_naive", 120, 8)},
        ("gemm_naive", "backward", "replaced"),
    ),
    "one more thing to do": (
        {4: ("backward", "aten::clamp_", [], "elementwise<clamp>", 20, 8)},
        ("elementwise<clamp>", "backward", "new"),
    ),
    "one thing less": ({3: None}, ("elementwise<add>", "optimizer", "gone")),
}


def made(path, changes):
    """A trace of two steps of the layers, with some of them changed."""
    layers = [layer for layer in ({**dict(enumerate(LAYERS)), **changes}).values() if layer]
    return write_trace(path, step(0, 1, layers) + step(100_000, 2, layers))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("what", MADE)
def test_what_changed_is_named_in_made_traces(imported, tmp_path, what):
    """That kernel, its section, the reason, and no other kernel."""
    changes, expected = MADE[what]
    before = imported("before", made(tmp_path / "a.json", {}))
    after = imported("after", made(tmp_path / "b.json", changes))

    found = compare_runs(measure_run(before), measure_run(after)).kernels

    assert [(change.name, change.section, change.reason) for change in found] == [expected]


def test_the_table_says_which_shapes(imported, tmp_path):
    """That of before and that of after, with the times of a step and of a call."""
    before = imported("before", made(tmp_path / "a.json", {}))
    after = imported("after", made(tmp_path / "b.json", MADE["a wider layer"][0]))

    page = render_comparison(compare_runs(measure_run(before), measure_run(after)))

    assert page.partition("kernels")[2].splitlines()[:4] == [
        "   all kernels 760 µs → 1.16 ms per step (+53 %)",
        "          gemm_64: 200 µs → 600 µs per step",
        "            shape: 50.0 µs → 150 µs per call, in aten::addmm of forward",
        "            [[64, 128], [128, 128]] → [[64, 128], [128, 512]]",
    ]


def test_two_windows_of_one_run_are_compared(imported, tmp_path):
    """By their order in time; a window that is not there is said."""
    early, late = made(tmp_path / "a.json", {}), tmp_path / "b.json"
    changed = MADE["a call takes longer"][0]
    layers = [{**dict(enumerate(LAYERS)), **changed}[at] for at in range(len(LAYERS))]
    write_trace(late, step(500_000, 7, layers))
    run = imported("net", early, late)

    found = compare_runs(measure_window(run, 1), measure_window(run, 2))

    assert [(change.name, change.reason) for change in found.kernels] == [("gemm_64", "speed")]
    assert "forward" in render_comparison(found)
    with pytest.raises(NoSuchWindow, match="the run has 2 profiler windows"):
        measure_window(run, 3)


def test_a_kernel_that_moved_to_another_section_did_not_change(imported, tmp_path):
    """It takes the same time, and is neither new nor gone."""
    moved = {1: ("activation", *LAYERS[1][1:])}
    before = imported("before", made(tmp_path / "a.json", {}))
    after = imported("after", made(tmp_path / "b.json", moved))

    assert compare_runs(measure_run(before), measure_run(after)).kernels == []


def of_name(entries, category, part):
    """The entries of a category whose name has that part."""
    return [one for one in entries if one.get("cat") == category and part in one["name"]]


def slow_flash(entries):
    """Each call of attention takes 1.6 times as long."""
    for one in of_name(entries, "kernel", "flash_fwd"):
        one["dur"] *= 1.6
    return "flash_fwd", "", "speed"


def other_gemm(entries):
    """One kind of matrix multiplication is done by another kernel, which takes longer."""
    (name, *_) = {one["name"] for one in of_name(entries, "kernel", "sm90_xmma_gemm_bf16bf16")}
    for one in of_name(entries, "kernel", name):
        one |= {"name": "sm90_fallback_gemm", "dur": one["dur"] * 2}
    return "sm90_fallback_gemm", "", "replaced"


def half_the_calls(entries):
    """Every second launch of one kernel is left out, with its kernel."""
    ids = [one["args"]["correlation"] for one in of_name(entries, "kernel", "flash_fwd")][::2]
    gone = [
        one for one in entries
        if one.get("args", {}).get("correlation") in ids and one.get("cat") != "cpu_op"
    ]  # fmt: skip
    for one in gone:
        entries.remove(one)
    return "flash_fwd", "", "count"


def longer_sequences(entries):
    """The inputs of attention are four times as long, and so is its time."""
    for one in of_name(entries, "cpu_op", "aten::_flash_attention_forward"):
        dims = one["args"]["Input Dims"]
        one["args"]["Input Dims"] = [[4 * size for size in part] for part in dims]
    for one in of_name(entries, "kernel", "flash_fwd"):
        one["dur"] *= 4
    return "flash_fwd", "", "shape"


def slow_backward(entries):
    """A kernel of the backward pass takes twice as long."""
    for one in of_name(entries, "kernel", "bn_bw_1C11_kernel_new"):
        one["dur"] *= 2
    return "bn_bw_1C11_kernel_new", "## backward ##", "speed"


def no_convolution(entries):
    """A kernel of the forward pass is not there any more."""
    for one in of_name(entries, "kernel", "128x64_relu_medium_nn"):
        entries.remove(one)
    return "128x64_relu_medium_nn", "DistributedDataParallel.forward", "gone"


QWEN, RESNET = "h100_qwen_0_5b_with_python_functions", "v100_resnet_ns_timestamps"
REAL = {
    QWEN: (slow_flash, other_gemm, half_the_calls, longer_sequences),
    RESNET: (slow_backward, no_convolution),
}


@pytest.mark.traces
@pytest.mark.parametrize("trace", REAL)
def test_what_changed_is_named_in_recorded_traces(imported, tmp_path, trace):
    """That kernel, its section and the reason, and no other kernel."""
    path = Path(os.environ.get("OTEL_MLPERF_TRACES", "")) / f"{trace}.json.gz"
    if not path.is_file():
        pytest.skip(f"OTEL_MLPERF_TRACES holds no {path.name}")
    recorded = json.loads(gzip.decompress(path.read_bytes()))
    before = measure_run(imported("before", path))

    for change in REAL[trace]:
        entries = copy.deepcopy(recorded["traceEvents"])
        name, section, reason = change(entries)
        changed = tmp_path / f"{change.__name__}.json"
        changed.write_text(json.dumps(recorded | {"traceEvents": entries}))

        found = compare_runs(before, measure_run(imported(change.__name__, changed))).kernels

        assert all(name in (one.after or one.before).name or not one.operator for one in found)
        # One of the traces begins in the middle of a step: not all of its kernels have an operator.
        told = {(one.section, one.reason) for one in found if one.operator}
        assert told == {(section, reason)}
