"""How much of a core do the readings of host and processes take, and what does each cost?

python tests/bench/sensors.py

Everything is measured as the CPU time of a thread that sleeps between readings, as the agent's
does, while another process sweeps through memory: in a loop the same code runs from warm caches and
seems to cost half. Rows of one table are taken in turn, in shuffled order, in the same run.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from otel_mlperf.sensors.host.devices import DISKS, INTERFACES, DeviceSensor, HardwareSensor
from otel_mlperf.sensors.host.filesystem import FilesystemSensor
from otel_mlperf.sensors.host.host_sensor import CpuSensor, HostSensor, PressureSensor, read_memory
from otel_mlperf.sensors.kernel_files import PROC, SYS
from otel_mlperf.sensors.processes.children import ChildFinder
from otel_mlperf.sensors.processes.process_usage import ProcessFiles, read_pss_bytes
from otel_mlperf.sensors.processes.psutil_process import PsutilChildFinder, PsutilProcess
from otel_mlperf.sensors.processes.training_processes import ProcessSensor

HOST_HZ = 10
DEFAULT_S = 5.0
SHORTEST_S = 0.1
LEVELS = ("basic", "detailed", "comprehensive")
RANK = """
import os, sys, threading
for _ in range(int(sys.argv[1])):
    if not os.fork():
        sys.stdin.read()
        os._exit(0)
for _ in range(int(sys.argv[2])):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
print(flush=True)
sys.stdin.read()
os._exit(0)
"""
SWEEP = "import numpy as n\na = n.zeros(1 << 23)\nwhile True: a += 1.0"


@contextmanager
def training(ranks, workers, threads):
    """Processes that look like a job's: ranks with threads and DataLoader workers."""
    command = [sys.executable, "-c", RANK, str(workers), str(threads)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    jobs = [subprocess.Popen(command, **pipes) for _ in range(ranks)]
    for job in jobs:
        job.stdout.readline()
    sweep = subprocess.Popen([sys.executable, "-c", SWEEP])
    try:
        yield [job.pid for job in jobs]
    finally:
        sweep.kill()
        sweep.wait()
        for job in jobs:
            job.communicate()


def in_a_thread(rows, interval_s, readings):
    """CPU time of each row's calls in a thread that sleeps in between; nanoseconds."""
    costs = {name: [] for name in rows}

    def sample():
        for call in rows.values():
            call()
        for _ in range(readings):
            time.sleep(interval_s)
            for name in random.sample(list(rows), len(rows)):
                began = time.thread_time_ns()
                rows[name]()
                costs[name].append(time.thread_time_ns() - began)

    thread = threading.Thread(target=sample)
    thread.start()
    thread.join()
    return costs


def pairs(pid):
    """What is read here and, of processes, what psutil takes for as much of it as it has."""
    reader = {level: ProcessFiles(pid, level, PROC) for level in LEVELS}
    theirs = {level: PsutilProcess(pid, level) for level in LEVELS}
    finder, their_finder = ChildFinder(pid, PROC), PsutilChildFinder(pid, PROC)
    known = finder.find((), ())
    cpu, memory = CpuSensor("basic", SYS), partial(read_memory, "basic")
    swap, disks = partial(read_memory, "detailed"), DeviceSensor(DISKS, "detailed", SYS)
    network, pressure = DeviceSensor(INTERFACES, "detailed", SYS), PressureSensor("detailed", PROC)
    hardware = HardwareSensor(PROC, SYS)

    def all_of(process):
        return lambda: process.figures(process.stat())

    return {
        "CPU times by mode, shares, load (psutil)": (cpu.read, None),
        "memory (psutil)": (memory, None),
        "memory and swap (psutil)": (swap, None),
        "disks (psutil)": (disks.read, None),
        "network (psutil)": (network.read, None),
        "stalls, paging": (pressure.read, None),
        "frequency, temperature": (hardware.read, None),
        "process: CPU, memory, threads; ours: run delay, too": (
            all_of(reader["basic"]), all_of(theirs["basic"])
        ),
        "process: and I/O, files; ours: switches of all threads, too": (
            all_of(reader["detailed"]), all_of(theirs["detailed"])
        ),
        "process: proportional set size": (lambda: read_pss_bytes(PROC / str(pid)), None),
        "children of a process": (
            lambda: finder.find(known, ()), lambda: their_finder.find(known, ())
        ),
    }  # fmt: skip


def print_costs(pid, readings):
    """Table of single readings."""
    rows, again = {}, pairs(pid)
    for name, (ours, theirs) in pairs(pid).items():
        rows[name, "ours"] = ours
        rows[name, "A/A"], _ = again[name]
        if theirs:
            rows[name, "psutil"] = theirs
    costs = {row: statistics.mean(took) / 1e3 for row, took in
             in_a_thread(rows, 1 / HOST_HZ, readings).items()}  # fmt: skip
    print("\n| µs of CPU, in a thread at 10 Hz | ours | A/A | psutil | ratio |")
    print("|---|---:|---:|---:|---:|")
    for name in dict.fromkeys(name for name, _ in rows):
        ours, again = costs[name, "ours"], costs[name, "A/A"]
        theirs = costs.get((name, "psutil"))
        beside = f"{theirs:.0f} | {ours / theirs:.2f}" if theirs else "– | –"
        print(f"| {name} | {ours:.0f} | {again:.0f} | {beside} |")


def print_shares(pids, folder, seconds):
    """Tables of whole sets."""
    print("\n| set | every | readings | CPU of one | share of a core |")
    print("|---|---:|---:|---:|---:|")
    for level in LEVELS:
        host = {f"host, {level}": HostSensor(level).read}
        _print_share(host, 1 / HOST_HZ, round(seconds * HOST_HZ))
    for level in LEVELS:
        sensor = ProcessSensor(level)
        sensor.follow(pids)
        parts = [HostSensor(level), sensor, FilesystemSensor(folder)]

        def read_all(parts=parts):
            for part in parts:
                part.read()

        name = f"all, {level}, {len(pids)} rank{'s' * (len(pids) > 1)}"
        for interval_s in (SHORTEST_S, DEFAULT_S):
            _print_share({name: read_all}, interval_s, max(3, round(seconds / interval_s)))


def _print_share(rows, interval_s, readings):
    for name, costs in in_a_thread(rows, interval_s, readings).items():
        mean_s = statistics.mean(costs) / 1e9
        every = f"{interval_s:g} s"
        share = 100 * mean_s / interval_s
        print(f"| {name} | {every} | {readings} | {1e6 * mean_s:.0f} µs | {share:.3f} % |")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20, help="of each row of shares")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--workers", type=int, default=4, help="of each rank")
    parser.add_argument("--threads", type=int, default=30, help="of each rank")
    options = parser.parse_args()
    print(f"{os.cpu_count()} CPUs, {options.workers} workers and {options.threads} threads a rank")
    with (
        training(options.ranks, options.workers, options.threads) as pids,
        tempfile.TemporaryDirectory() as folder,
    ):
        print_costs(pids[0], round(options.seconds * HOST_HZ / 2))
        for ranks in sorted({1, options.ranks}):
            print_shares(pids[:ranks], Path(folder), options.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
