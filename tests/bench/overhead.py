"""What does recording add to a training loop, and to its slowest steps?

    python tests/bench/overhead.py

Blocks of plain steps stand right before and right after each block of recorded ones, in shuffled
order, with the garbage collected before every block; a row that records nothing (A/A) shows how
much two equal blocks differ on this machine. The peer is the OpenTelemetry SDK with its
BatchSpanProcessor and OTLP/HTTP exporter; both send to a sink in a process of its own. What the SDK
has not sent at the end of its block it sends before the next one, in nobody's time.
"""

from __future__ import annotations

import gc
import os
import random
import statistics
import sys
import tempfile
import time
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from typing import NamedTuple

import torch
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import otel_mlperf as om

BLOCK_S = 1.0
ROUNDS = 20
LATENCY_STEPS = 1200


class Sink(BaseHTTPRequestHandler):
    """An OTLP receiver that reads everything and keeps nothing."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def serve(port):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Sink)
    port.put(server.server_port)
    server.serve_forever()


@contextmanager
def sink():
    """The address of a sink that lives in another process."""
    spawn = get_context("spawn")
    port = spawn.Queue()
    process = spawn.Process(target=serve, args=(port,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{port.get()}"
    finally:
        process.terminate()
        process.join()


class Work(NamedTuple):
    """A model to train and how many steps fill a block."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    x: torch.Tensor
    y: torch.Tensor
    steps: int


def make_work(width, batch):
    layers = [(torch.nn.Linear(width, width), torch.nn.ReLU()) for _ in range(3)]
    model = torch.nn.Sequential(*(module for pair in layers for module in pair))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    return Work(model, optimizer, torch.randn(batch, width), torch.randn(batch, width), 100)


def work_of(step_s, width):
    """Work with steps of that length, by the size of its batches."""
    batch = 64
    for _ in range(8):
        work = make_work(width, batch)
        train_plain(work)
        measured = statistics.median(train_plain(work) for _ in range(5)) / work.steps
        if abs(measured / step_s - 1) < 0.05:
            break
        batch = max(1, round(batch * step_s / measured))
    return work._replace(steps=round(BLOCK_S / step_s))


def train_plain(work):
    """The loop with nothing in it; seconds for the block."""
    model, optimizer, x, y, steps = work
    start = time.perf_counter()
    for _ in range(steps):
        batch = x + 0.0
        loss = ((model(batch) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return time.perf_counter() - start


def train_with(step, span):
    """The same loop with five spans a step."""

    def train(work):
        model, optimizer, x, y, steps = work
        start = time.perf_counter()
        for _ in range(steps):
            with step("step"):
                with span("data"):
                    batch = x + 0.0
                with span("forward"):
                    loss = ((model(batch) - y) ** 2).mean()
                with span("backward"):
                    loss.backward()
                with span("optimizer"):
                    optimizer.step()
                    optimizer.zero_grad()
        return time.perf_counter() - start

    return train


def our_step(_name):
    return om.step()


def then(train, call):
    """``train``, and after its time ``call``."""

    def train_and_call(work):
        took_s = train(work)
        call()
        return took_s

    return train_and_call


def measure(work, variants):
    """Ratios to the plain blocks around, by variant, and the seconds of a plain step."""
    ratios = {name: [] for name in variants}
    plain = []
    for train in variants.values():
        train(work._replace(steps=20))
    for _ in range(ROUNDS):
        for name in random.sample(list(variants), len(variants)):
            blocks = []
            for train in (train_plain, variants[name], train_plain):
                gc.collect()
                blocks.append(train(work))
            ratios[name].append(2 * blocks[1] / (blocks[0] + blocks[2]))
            plain.append(blocks[0] / work.steps)
    return ratios, statistics.median(plain)


def print_loop(work, variants):
    ratios, step_s = measure(work, variants)
    print(f"\n| step of {step_s * 1e3:.2f} ms, 5 spans | overhead | middle half | a step |")
    print("|---|---:|---:|---:|")
    for name, values in ratios.items():
        low, middle, high = (100 * (q - 1) for q in statistics.quantiles(values, n=4))
        cost = middle / 100 * step_s * 1e6
        print(f"| {name} | {middle:+.2f} % | {low:+.2f} … {high:+.2f} % | {cost:+.1f} µs |")


def latencies(span, pieces, x):
    """Milliseconds of each of 100 steps of 20 spans."""
    found = []
    for _ in range(100):
        start = time.perf_counter()
        with span("step"):
            for _ in range(19):
                with span("piece"):
                    for _ in range(pieces):
                        torch.tanh(x)
        found.append((time.perf_counter() - start) * 1e3)
    return found


def pieces_for(milliseconds, x):
    """How much of the work makes a step that long."""
    alone = statistics.median(latencies(lambda _: nullcontext(), 10, x))
    return max(1, round(10 * milliseconds / alone))


def print_latency(variants):
    x = torch.randn(2048)
    pieces = pieces_for(10, x)
    found = {name: [] for name in variants}
    for _ in range(LATENCY_STEPS // 100):
        for name in random.sample(list(variants), len(variants)):
            gc.collect()
            found[name] += latencies(variants[name], pieces, x)
    plain = statistics.quantiles(next(iter(found.values())), n=100)
    print("\n| step of 10 ms, 20 spans | median | p99 | p99 more than plain |")
    print("|---|---:|---:|---:|")
    for name, values in found.items():
        cuts = statistics.quantiles(values, n=100)
        print(
            f"| {name} | {cuts[49]:.2f} ms | {cuts[98]:.2f} ms | {cuts[98] - plain[98]:+.2f} ms |"
        )


def main():
    torch.set_num_threads(1)
    with sink() as address, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        provider = TracerProvider()
        exporter = OTLPSpanExporter(endpoint=f"{address}/v1/traces")
        provider.add_span_processor(BatchSpanProcessor(exporter))
        sdk = provider.get_tracer("bench").start_as_current_span
        os.environ |= {"OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_MLPERF_CONSOLE": "false"}
        with om.start("overhead", dir=folder):
            variants = {
                "nothing (A/A)": train_plain,
                "otel_mlperf": train_with(our_step, om.span),
                "OpenTelemetry SDK, OTLP": then(train_with(sdk, sdk), provider.force_flush),
            }
            print_loop(work_of(0.5e-3, 128), variants)
            print_loop(work_of(2e-3, 256), variants)
            print_latency({
                "nothing": lambda _: nullcontext(),
                "nothing (A/A)": lambda _: nullcontext(),
                "otel_mlperf": om.span,
                "OpenTelemetry SDK, OTLP": sdk,
            })  # fmt: skip
        provider.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
