"""Small traces as PyTorch's profiler writes them, built in code."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

BASE_NS = 1_727_743_122_000_000_000
"""``baseTimeNanoseconds`` of traces that do not ask for another."""
PID = 4242


def event(name, start_us, duration_us, *, category="cpu_op", pid=PID, tid=PID, **args):
    """An entry with a duration; ``args`` as the file names them: ``**{"External id": 1}``."""
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": start_us,
        "dur": duration_us,
        "args": args,
    }


def operator(name, start_us, duration_us, *, external=None, tid=PID, **args):
    """A ``cpu_op``."""
    known = {} if external is None else {"External id": external}
    return event(name, start_us, duration_us, tid=tid, **known, **args)


def launch(start_us, duration_us, correlation, *, name="cudaLaunchKernel", tid=PID, **args):
    """A call of the CUDA runtime."""
    args = {"correlation": correlation, **args}
    return event(name, start_us, duration_us, category="cuda_runtime", tid=tid, **args)


def kernel(name, start_us, duration_us, correlation, *, stream=7, device=0, **args):
    """A kernel on a device."""
    args = {"device": device, "stream": stream, "correlation": correlation, **args}
    return event(name, start_us, duration_us, category="kernel", pid=device, tid=stream, **args)


def flow(phase, ident, time_us, *, category="ac2g", pid=PID, tid=PID):
    """One end of an arrow: ``s`` or ``f``."""
    end = {"ph": phase, "id": ident, "pid": pid, "tid": tid, "ts": time_us}
    return end | {"cat": category, "name": category} | ({"bp": "e"} if phase == "f" else {})


def allocation(time_us, size, *, address=1 << 40, device_type=1, device=0, tid=PID, **totals):
    """A ``[memory]`` instant; ``totals`` are ``allocated`` and ``reserved``."""
    args = {"Device Type": device_type, "Device Id": device, "Addr": address, "Bytes": size}
    names = {"allocated": "Total Allocated", "reserved": "Total Reserved"}
    return {
        "ph": "i",
        "cat": "cpu_instant_event",
        "s": "t",
        "name": "[memory]",
        "pid": PID,
        "tid": tid,
        "ts": time_us,
        "args": args | {names[key]: value for key, value in totals.items()},
    }


def named(what, name, *, pid=PID, tid=0):
    """Metadata: ``process_name`` or ``thread_name``."""
    return {"name": what, "ph": "M", "ts": 0, "pid": pid, "tid": tid, "args": {"name": name}}


def trace_text(entries, *, base_ns=BASE_NS, **header):
    """The text of a file, in the layout of Kineto: the base time stands behind the events."""
    before = {"schemaVersion": 1, "deviceProperties": [], **header}
    head = "".join(f"  {json.dumps(key)}: {json.dumps(value)},\n" for key, value in before.items())
    body = ",\n  ".join(json.dumps(entry, indent=2) for entry in entries)
    tail = {"traceName": "trace.json", "displayTimeUnit": "ms"}
    if base_ns is not None:
        tail["baseTimeNanoseconds"] = base_ns
    end = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in tail.items())
    return f'\n{{\n{head}  "traceEvents": [\n  {body}\n  ],\n{end}\n}}\n'


def write_trace(path, entries, **options):
    """Write a file, compressed if its name says so; returns the path."""
    text = trace_text(entries, **options).encode()
    path.write_bytes(gzip.compress(text, 1) if path.suffix == ".gz" else text)
    return path


def training_step(start_us=1000.0, *, tid=PID):
    """Two operators that launch a kernel each, in a ProfilerStep; arrows included."""
    return [
        event("ProfilerStep#3", start_us, 500.25, category="user_annotation", tid=tid),
        operator("aten::linear", start_us + 10.5, 100.125, external=11, tid=tid),
        operator("aten::addmm", start_us + 20.001, 80.999, external=12, tid=tid),
        launch(start_us + 40, 9.5, 101, tid=tid, **{"External id": 12}),
        flow("s", 101, start_us + 40, tid=tid),
        kernel("sgemm_128x64", start_us + 150.375, 60.5, 101, **{"External id": 12}),
        flow("f", 101, start_us + 150.375, pid=0, tid=7),
        operator("aten::relu", start_us + 120, 30, external=13, tid=tid),
        launch(start_us + 130, 8, 102, tid=tid, **{"External id": 13}),
        flow("s", 102, start_us + 130, tid=tid),
        kernel("relu_kernel<float>", start_us + 211, 5.75, 102, **{"External id": 13}),
        flow("f", 102, start_us + 211, pid=0, tid=7),
    ]


def graph_capture(*nodes, start=0, vendor="hip"):
    """A capture of operators that launch a kernel each: pairs of names, the first may be empty.

    ROCm's calls name the kernel, CUDA's do not; nothing runs, so that no record is a device's.
    """
    entries = [launch(start, 1, 1, name=f"{vendor}StreamBeginCapture")]
    for at, (name, kernel_name) in enumerate(nodes):
        begin = start + 10 + 20 * at
        args = {"kernel": kernel_name} if vendor == "hip" else {}
        entries.append(operator(name, begin, 15) if name else event("loop", begin, 1))
        entries.append(launch(begin + 5, 2, begin, name=f"{vendor}LaunchKernel", **args))
    end = start + 20 + 20 * len(nodes)
    return [*entries, launch(end, 1, 2, name=f"{vendor}StreamEndCapture")]


def graph_replay(*kernels, start=0, number=7, vendor="hip", **args):
    """One launch of a graph, inside of an operator as of a compiled region."""
    return [
        operator("Region", start, 12),
        launch(start + 2, 5, number, name=f"{vendor}GraphLaunch"),
        *(kernel(name, start + 50 + 10 * at, 8, number, **args) for at, name in enumerate(kernels)),
    ]


def real_traces():
    """The recorded traces of ``OTEL_MLPERF_TRACES``, for ``parametrize``; one skip without them."""
    folder = os.environ.get("OTEL_MLPERF_TRACES", "")
    paths = sorted(Path(folder).glob("*.json*")) if folder else []
    if paths:
        return [
            pytest.param(path, marks=pytest.mark.traces, id=path.name.split(".")[0])
            for path in paths
        ]
    reason = "OTEL_MLPERF_TRACES names no folder of recorded traces"
    marks = [pytest.mark.traces, pytest.mark.skip(reason=reason)]
    return [pytest.param(None, marks=marks, id="none")]
