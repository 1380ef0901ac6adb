"""How long does linking take, on recorded traces and on one of a million events?

The million is the largest trace of the folder, repeated in time with ids of its own. Reading the
file is beside it as the measure of what is small: linking is asked for once for each file read.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from pathlib import Path

import numpy as np

from otel_mlperf.kineto.linking.link import link
from otel_mlperf.kineto.reading.trace_reader import read_trace
from otel_mlperf.kineto.trace_events import Events

MANY = 1_000_000
IDS = ("correlation", "external", "sequence")


def seconds(call, times=5):
    """The median of several calls."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def repeated(trace, count):
    """The trace with at least this many events."""
    events = trace.events
    span = int((events.start_ns + events.duration_ns).max() - events.start_ns.min())
    turns = np.repeat(np.arange(-(-count // len(events))), len(events))
    columns = {
        field.name: np.tile(getattr(events, field.name), turns[-1] + 1)
        for field in dataclasses.fields(Events)
    }
    columns["start_ns"] = columns["start_ns"] + turns * span
    for name in IDS:
        step = int(columns[name].max()) + 1
        columns[name] = np.where(columns[name] >= 0, columns[name] + turns * step, columns[name])
    return dataclasses.replace(trace, events=Events(**columns))


def main():
    """Prints one row for each trace."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", type=Path, help="folder of traces")
    paths = sorted(parser.parse_args().traces.glob("*.json*"))
    print(f"{'trace':<44}{'events':>10}{'read s':>9}{'link s':>9}{'µs/event':>10}")
    for path in paths:
        trace = read_trace(path)
        row(path.name, seconds(lambda path=path: read_trace(path), 1), trace)
    largest = max(paths, key=lambda path: path.stat().st_size)
    row(f"{largest.name[:26]}, repeated", float("nan"), repeated(read_trace(largest), MANY))


def row(name, reading, trace):
    """One line of the table."""
    linking, count = seconds(lambda: link(trace)), len(trace.events)
    print(f"{name:<44}{count:>10,}{reading:>9.3f}{linking:>9.3f}{linking / count * 1e6:>10.2f}")


if __name__ == "__main__":
    main()
