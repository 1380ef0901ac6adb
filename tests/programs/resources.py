"""Sections that use what the kernel counts: nested, in threads, in tasks; prints what it says."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import otel_mlperf as om

KIB = 1 << 10


def move(size):
    """Reads and writes so many bytes."""
    with open("/dev/zero", "rb", buffering=0) as zeros, open(os.devnull, "wb", buffering=0) as sink:
        sink.write(zeros.read(size))


def burn(cpu_s):
    """Uses CPU time of the calling thread."""
    until = time.thread_time() + cpu_s
    while time.thread_time() < until:
        pass


def written():
    """Bytes that the calling thread has written so far, by the kernel."""
    return int(Path("/proc/thread-self/io").read_text().split()[3])


class Kernel:
    """What the kernel says of the caller's thread around sections of one name."""

    def __init__(self):
        self.said = {}

    def measure(self, name, work):
        before, begun = written(), time.thread_time_ns()
        work()
        used = time.thread_time_ns() - begun, written() - before
        so_far = self.said.get(name, (0, 0))
        self.said[name] = [a + b for a, b in zip(so_far, used, strict=True)]


def nested():
    with om.span("outer", resources=True):
        move(KIB)
        with om.span("inner", resources=True):
            burn(0.0005)
            move(2 * KIB)


def threaded(share):
    with om.span("threaded", resources=True):
        burn(0.001)
        move(share * KIB)


async def waits():
    with om.span("waits", resources=True):
        await asyncio.sleep(0)
        move(KIB)


async def works():
    with om.span("works", resources=True):
        move(3 * KIB)


async def tasks():
    await asyncio.gather(*(task() for _ in range(20) for task in (waits, works)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--count")
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    kernel = Kernel()
    with om.start("resources"):
        begun = time.process_time()
        for _ in om.steps(range(options.steps)):
            kernel.measure("outer", nested)
        with ThreadPoolExecutor(4) as pool:
            for each in [
                pool.submit(kernel.measure, f"threaded {i}", lambda i=i: threaded(i))
                for i in range(1, 41)
            ]:
                each.result()
        asyncio.run(tasks())
        used = time.process_time() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    print(json.dumps({"kernel": kernel.said, "process_s": used, "peak_bytes": peak}))


if __name__ == "__main__":
    main()
