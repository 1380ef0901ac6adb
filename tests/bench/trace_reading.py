"""How fast does a trace become columns, beside json, orjson and HTA, and in how much memory?

Every row runs in a process of its own, in shuffled order, as a user would: from the file to the
columns of ``kineto.events``. The rows of json and orjson fill the same columns in the plainest way,
with times as floats. HTA (``HolisticTraceAnalysis``) runs in the Python given by ``--hta``, as it
asks for older packages; its row is left out, with the reason, where it cannot be imported. The last
rows read a generated file, and import it as the command does, and compare peak memory with the bar;
what the interpreter and its modules take is that of an import of a trace of four entries.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

TRACE = "v100_nccl_memory_old_schema.json.gz"
ORJSON_BAR, HTA_BAR = 2.5, 8
BUFFER_BYTES, EVENT_BYTES = 64 << 20, 96
GENERATED_BYTES = 400_000_000
ARGS = {
    "correlation": "correlation",
    "external": "External id",
    "sequence": "Sequence number",
    "forward_thread": "Fwd thread id",
    "device": "device",
    "stream": "stream",
    "bytes": "bytes",
}


def ours(path):
    """Columns, exact times, flows and allocations, digest."""
    from otel_mlperf.kineto.reading.trace_reader import read_trace

    start = time.perf_counter()
    count = sum(read_trace(path).counts.values())
    return time.perf_counter() - start, count


def plain(loads, path):
    """Dictionaries, then the same columns of events, flows and allocations."""
    start = time.perf_counter()
    entries = loads(path.read_bytes())["traceEvents"]
    columns(entries)
    return time.perf_counter() - start, len(entries)


def columns(entries):
    import numpy as np

    names, categories, tracks = {}, {}, {}
    events, flows, memory = defaultdict(list), defaultdict(list), defaultdict(list)
    for entry in entries:
        args = entry.get("args") or {}
        phase = entry["ph"]
        table = {"X": events, "s": flows, "f": flows, "i": memory}.get(phase)
        if table is None or (table is memory and entry["name"] != "[memory]"):
            continue
        table["ts"].append(entry["ts"])
        table["track"].append(tracks.setdefault((entry["pid"], entry["tid"]), len(tracks)))
        if table is events:
            table["dur"].append(entry["dur"])
            table["name"].append(names.setdefault(entry["name"], len(names)))
            table["cat"].append(categories.setdefault(entry.get("cat", ""), len(categories)))
            for column, name in ARGS.items():
                table[column].append(args.get(name, -1))
        elif table is flows:
            table["id"].append(entry["id"])
            table["starts"].append(phase == "s")
            table["kind"].append(entry["cat"])
        else:
            for name in ("Device Type", "Device Id", "Bytes", "Addr", "Total Allocated"):
                table[name].append(args.get(name, -1))
    return [np.array(column) for table in (events, flows, memory) for column in table.values()]


def with_json(path):
    import json

    return plain(json.loads, path)


def with_orjson(path):
    import orjson

    return plain(orjson.loads, path)


def with_hta(path):
    import logging

    from hta.common.trace_parser import parse_trace_dataframe
    from hta.configs.parser_config import ParserConfig

    logging.disable(logging.CRITICAL)
    start = time.perf_counter()
    frame = parse_trace_dataframe(str(path), ParserConfig.get_default_cfg())[1]
    return time.perf_counter() - start, len(frame)


MODULES = {"ours": "otel_mlperf.kineto.reading.trace_reader", "HTA": "hta.common.trace_parser"}
METHODS = {"ours": ours, "orjson": with_orjson, "json": with_json, "HTA": with_hta}


def measure(name, path):
    """In this process: seconds, entries, and what the peak of resident memory rose by."""
    import numpy as np  # noqa: F401  loaded before memory is read, as by any user

    try:
        __import__(MODULES.get(name, name))
    except ImportError as error:
        print(f"skipped: {error}")
        return
    before = peak_bytes()
    seconds, count = METHODS[name](path)
    print(seconds, count, peak_bytes() - before)


def peak_bytes():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))


def run(name, path, python):
    command = [python, __file__, "--one", name, str(path)]
    environ = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])} if name != "HTA" else None
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    line = (done.stdout.strip().splitlines() or [""])[-1]
    if done.returncode or not line[:1].isdigit():
        return line or done.stderr.strip().splitlines()[-1]
    seconds, count, memory = line.split()
    return float(seconds), int(count), int(memory)


def compare(path, pythons, repeats):
    """Print one line for each method; the medians by name."""
    results = defaultdict(list)
    for _ in range(repeats):
        names = list(METHODS)
        random.shuffle(names)
        for name in names:
            results[name].append(run(name, path, pythons[name]))
    medians = {}
    size = path.stat().st_size
    print(f"{path.name}: {size / 1e6:.1f} MB, median of {repeats}")
    for name in METHODS:
        if isinstance(results[name][0], str):
            print(f"  {name:<7} {results[name][0]}")
            continue
        medians[name] = statistics.median(seconds for seconds, _, _ in results[name])
        _, count, memory = results[name][0]
        print(
            f"  {name:<7} {medians[name]:7.3f} s {size / 1e6 / medians[name]:7.1f} MB/s"
            f"  {count / medians[name]:>10,.0f} entries/s  peak +{memory / 1e6:5.0f} MB"
        )
    return medians


def generate(path, size):
    """A trace of operators, launches, kernels and arrows as Kineto writes them."""
    with path.open("w") as file:
        file.write('{\n  "schemaVersion": 1,\n  "deviceProperties": [],\n  "traceEvents": [\n')
        row = 0
        while file.tell() < size:
            file.write("".join(quartet(row + i) for i in range(0, 40_000, 4)))
            row += 40_000
        file.write(quartet(row).rstrip(",\n"))
        file.write('\n  ],\n  "baseTimeNanoseconds": 1727743122000000000\n}\n')


def quartet(row):
    """Four entries, of which one is an end of an arrow."""
    start = 1_000_000 + row * 7.125
    return f"""  {{
    "ph": "X", "cat": "cpu_op", "name": "aten::op_{row % 97}", "pid": 4242, "tid": 4242,
    "ts": {start:.3f}, "dur": 6.031,
    "args": {{
      "External id": {row},"Record function id": {row}, "Ev Idx": {row}
    }}
  }},
  {{
    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 4242, "tid": 4242,
    "ts": {start + 1:.3f}, "dur": 3.515,
    "args": {{
      "External id": {row}, "cbid": 211, "correlation": {row}
    }}
  }},
  {{
    "ph": "s", "id": {row}, "pid": 4242, "tid": 4242, "ts": {start + 1:.3f},
    "cat": "ac2g", "name": "ac2g"
  }},
  {{
    "ph": "X", "cat": "kernel", "name": "void at::native::kernel_{row % 61}<float>(int)", "pid": 0,
    "tid": 7, "ts": {start + 9:.3f}, "dur": 5.888,
    "args": {{
      "External id": {row}, "queued": 0, "device": 0, "context": 1, "stream": 7,
      "correlation": {row}, "registers per thread": 32, "grid": [1, 2, 3], "block": [128, 1, 1]
    }}
  }},
"""


def memory(size):
    """Read a large generated file; whether peak memory is below the bar."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "generated.pt.trace.json"
        generate(path, size)
        seconds, count, peak = run("ours", path, sys.executable)
        bar = BUFFER_BYTES + EVENT_BYTES * count
        print(
            f"generated: {path.stat().st_size / 1e6:.0f} MB, {count:,} entries, {seconds:.2f} s,"
            f" peak +{peak / 2**20:.0f} MiB (bar {bar / 2**20:.0f} MiB:"
            f" 64 MiB and {EVENT_BYTES} bytes an entry)"
        )
        return peak <= bar and imported(path, Path(folder), bar)


def imported(path, folder, bar):
    """Import it as the command does; whether peak memory is below the bar."""
    small = folder / "small.pt.trace.json"
    small.write_text('{"traceEvents": [' + quartet(0).rstrip(",\n") + "]}")
    runs = {"OTEL_MLPERF_DIR": str(folder / "runs")}
    held = True
    for what, options in (("import", []), ("import --run", ["--run", "generated"])):
        peak = command_peak([str(path), *options], runs)
        own = command_peak([str(small), *options], runs)
        print(
            f"{what}: peak {peak / 2**20:.0f} MiB, of it the interpreter {own / 2**20:.0f} MiB"
            f" (bar {bar / 2**20:.0f} MiB beside the interpreter)"
        )
        held = held and peak - own <= bar
    return held


def command_peak(options, environ):
    """The peak memory of ``otel-mlperf import``."""
    told = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    command = [sys.executable, "-c", told, sys.executable, "-m", "otel_mlperf", "import", *options]
    paths = {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | paths | environ
    )
    return int(done.stdout.splitlines()[-1]) << 10


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=2, metavar=("METHOD", "FILE"), help=argparse.SUPPRESS)
    parser.add_argument("--traces", default=os.environ.get("OTEL_MLPERF_TRACES", ""))
    parser.add_argument("--hta", default=os.environ.get("HTA_PYTHON", sys.executable))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--generated-bytes", type=int, default=GENERATED_BYTES)
    options = parser.parse_args()
    if options.one:
        measure(options.one[0], Path(options.one[1]))
        return
    held = [memory(options.generated_bytes)]
    source = Path(options.traces) / TRACE
    if source.exists():
        held += compare_unpacked(source, options)
    else:
        print(f"skipped: no {TRACE} in {options.traces or 'OTEL_MLPERF_TRACES, which is not set'}")
    sys.exit(0 if all(held) else 1)


def compare_unpacked(source, options):
    """Unpack the trace, print all rows; which bars hold."""
    data = source.read_bytes()
    if data.startswith(b"\x1f\x8b"):
        import gzip

        data = gzip.decompress(data)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / source.name.removesuffix(".gz")
        path.write_bytes(data)
        pythons = dict.fromkeys(METHODS, sys.executable) | {"HTA": options.hta}
        medians = compare(path, pythons, options.repeats)
    held = []
    for name, bar in (("orjson", ORJSON_BAR), ("HTA", HTA_BAR)):
        if name in medians:
            ratio = medians[name] / medians["ours"]
            print(f"  {ratio:.1f} times as fast as {name} (bar {bar})")
            held.append(ratio >= bar)
    return held


if __name__ == "__main__":
    main()
