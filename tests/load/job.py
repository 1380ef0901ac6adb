"""Which program is under load: one that makes spans as it is told, with either recorder.

It writes down what it made in a mapped file, which survives whatever ends it. A step has ten spans:
its own and nine pieces with three attributes each; other threads and children make single spans.
"""

from __future__ import annotations

import argparse
import mmap
import os
import statistics
import sys
import threading
import time
from multiprocessing import get_context
from pathlib import Path

from opentelemetry import trace

PIECES = 9
P99_NS, ENDED_NS, GROWN_BYTES, FIRST = 0, 1, 2, 8
"""Words of the file: facts, and from ``FIRST`` on what each thread has made."""
WORDS = 512


class Ours:
    """Recorded by otel_mlperf; the agent sends."""

    def __init__(self):
        import otel_mlperf as om

        self._run = om.start("load")
        self.step, self._span = om.step, om.span

    def piece(self):
        return self._span("piece", layer=3, kind="attention", ratio=0.5)

    def stop(self):
        self._run.stop()


class Sdk:
    """Recorded by the OpenTelemetry SDK, with its defaults."""

    def __init__(self):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self._provider = TracerProvider()
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._span = self._provider.get_tracer("load").start_as_current_span

    def step(self):
        return self._span("train.step")

    def piece(self):
        return self._span("piece", attributes={"layer": 3, "kind": "attention", "ratio": 0.5})

    def stop(self):
        self._provider.shutdown()


def step_once(recorder, words, took_ns, traces):
    """One step of ten spans; the first of its pieces is timed."""
    with recorder.step():
        began = time.perf_counter_ns()
        with recorder.piece():
            pass
        took_ns.append(time.perf_counter_ns() - began)
        for _ in range(PIECES - 1):
            with recorder.piece():
                pass
        if traces is not None:
            of = trace.get_current_span().get_span_context()
            traces.write(f"{of.trace_id:032x}\n")
    words[FIRST] += 1 + PIECES


def steps(recorder, words, given, took_ns, traces):
    """So many steps a second, for so long; without a rate as fast as they come."""
    until, started = time.monotonic() + given.seconds, time.monotonic()
    n = 0
    while n < given.count // (1 + PIECES) and time.monotonic() < until:
        step_once(recorder, words, took_ns, traces)
        n += 1
        if given.rate:
            time.sleep(max(0, started + n * (1 + PIECES) / given.rate - time.monotonic()))


def pieces(recorder, words, place, count, took_ns, pause_s=0.0):
    """Single spans, counted at a place of one's own."""
    for _ in range(count):
        began = time.perf_counter_ns()
        with recorder.piece():
            pass
        took_ns.append(time.perf_counter_ns() - began)
        words[place] += 1
        if pause_s:
            time.sleep(pause_s)


def threads(recorder, words, given, took_ns):
    """Threads that share the count."""
    each = given.count // given.threads
    pause_s = given.threads / given.rate if given.rate else 0.0
    several = [
        threading.Thread(target=pieces, args=(recorder, words, FIRST + n, each, took_ns, pause_s))
        for n in range(given.threads)
    ]
    for one in several:
        one.start()
    for one in several:
        one.join()


def forks(recorder, words, given, took_ns):
    """Children of multiprocessing, one batch after the other, each of which makes fifty spans."""
    fork = get_context("fork")
    for batch in range(given.forks // 10):
        children = [
            fork.Process(target=pieces, args=(recorder, words, FIRST + place, 50, took_ns))
            for place in range(10 * batch, 10 * batch + 10)
        ]
        for child in children:
            child.start()
        for child in children:
            child.join()


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--recorder", choices=("ours", "sdk"), required=True)
    parser.add_argument("--truth", type=Path, required=True)
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--count", type=int, default=1 << 40)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--forks", type=int, default=0)
    given = parser.parse_args()
    given.truth.write_bytes(bytes(8 * WORDS))
    with given.truth.open("r+b") as file:
        words = memoryview(mmap.mmap(file.fileno(), 8 * WORDS)).cast("Q")
    traces = given.traces.open("w") if given.traces else None
    recorder = (Ours if given.recorder == "ours" else Sdk)()
    before, took_ns = resident_bytes(), []
    if given.forks:
        forks(recorder, words, given, took_ns)
    elif given.threads:
        threads(recorder, words, given, took_ns)
    else:
        steps(recorder, words, given, took_ns, traces)
    if traces:
        traces.close()
    # What this program itself has kept is eight bytes a timed call and the number.
    words[GROWN_BYTES] = max(0, resident_bytes() - before - 40 * len(took_ns))
    words[P99_NS] = int(statistics.quantiles(took_ns, n=100)[98]) if len(took_ns) > 1 else 0
    words[ENDED_NS] = time.monotonic_ns()
    recorder.stop()
    return 0


if __name__ == "__main__":
    # A child of multiprocessing ends by os._exit, as workers of a DataLoader do.
    os.environ.setdefault("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    sys.exit(main())
