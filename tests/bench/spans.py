"""What does one span cost through the public call, beside the OpenTelemetry SDK's?

Rows are measured in shuffled blocks with a collection of garbage before each, inside a parent span
as in a training step. ``A/A`` is the plain span measured a second time under another name: what
differs between those two is noise. The ratio is to the SDK in the same run.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

import otel_mlperf as om
from otel_mlperf.journal.layout import Word
from otel_mlperf.recorder.core import recording

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCKS = 15
clock = time.perf_counter_ns


class Null(SpanExporter):
    """An exporter that is faster than any real one."""

    def export(self, spans):
        return SpanExportResult.SUCCESS


class Bare:
    """The least that a block with two clock reads can cost in Python."""

    __slots__ = ("t0",)

    def __enter__(self):
        self.t0 = clock()
        return self

    def __exit__(self, *exception):
        clock()


@om.span("decorated")
def decorated():
    """A function that does nothing."""


def plain():
    """A function that does nothing, and is not decorated."""


def _loop_span(n):
    for _ in range(n):
        with om.span("forward"):
            pass


def _loop_attributes(n):
    for i in range(n):
        with om.span("forward", layer=i, kind="attention", ratio=0.5):
            pass


def _loop_aggregate(n):
    for _ in range(n):
        with om.span("lookup", aggregate=True):
            pass


def _loop_measured(n):
    for _ in range(n):
        with om.span("forward", resources=True):
            pass


def _loop_profiled(n):
    for _ in range(n):
        with om.span("forward", profile="calls"):
            pass


def _loop_request(n):
    for _ in range(n):
        with om.request("predict"):
            pass


def _loop_identified(n):
    for i in range(n):
        with om.request("predict", id=i, within_s=0.05):
            pass


def _loop_decorated(n):
    for _ in range(n):
        decorated()


def _loop_plain(n):
    for _ in range(n):
        plain()


def _loop_bare(n):
    for _ in range(n):
        with Bare():
            pass


def _rows(tracer) -> dict[str, tuple[Callable[[int], None], int, bool]]:
    def sdk(n):
        for _ in range(n):
            with tracer.start_as_current_span("forward"):
                pass

    def sdk_attributes(n):
        for i in range(n):
            attributes = {"layer": i, "kind": "attention", "ratio": 0.5}
            with tracer.start_as_current_span("forward", attributes=attributes):
                pass

    return {
        "floor: a block with two clocks": (_loop_bare, 20_000, True),
        "span": (_loop_span, 20_000, True),
        "span, A/A": (_loop_span, 20_000, True),
        "span with three attributes": (_loop_attributes, 5_000, True),
        "span, aggregate=True": (_loop_aggregate, 20_000, True),
        "span, resources=True": (_loop_measured, 2_000, True),
        "span, profile=, later calls": (_loop_profiled, 2_000, True),
        "request": (_loop_request, 5_000, True),
        "request, A/A": (_loop_request, 5_000, True),
        "request with id and within_s": (_loop_identified, 5_000, True),
        "disabled request": (_loop_request, 20_000, False),
        "decorated function": (_loop_decorated, 20_000, True),
        "function, not decorated": (_loop_plain, 20_000, True),
        "disabled span": (_loop_span, 20_000, False),
        "disabled decorated function": (_loop_decorated, 20_000, False),
        "OpenTelemetry SDK": (sdk, 2_000, True),
        "SDK with three attributes": (sdk_attributes, 2_000, True),
    }


def measure(blocks: int = BLOCKS) -> dict[str, float]:
    """Median nanoseconds by row."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(Null()))
    rows = _rows(provider.get_tracer("bench"))
    found: dict[str, list[float]] = {name: [] for name in rows}
    order = random.Random(0)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        run = stack.enter_context(om.start("bench", dir=folder, agent="none", console=False))
        recorder = recording.active()
        assert recorder is not None
        words = recorder.journal.words
        for _ in range(blocks):
            for name in order.sample(list(rows), len(rows)):
                loop, n, is_on = rows[name]
                # Nobody reads the journal here: what a block wrote is given free.
                words[Word.TAIL] = recorder.journal.lease.end
                recording.activate(recorder if is_on else None)
                gc.collect()
                with om.span("step"):
                    began = clock()
                    loop(n)
                    found[name].append((clock() - began) / n)
        recording.activate(recorder)
        lost = words[Word.LOST_RING_FULL]
        os.unlink(recorder.journal.path)
        del run
    provider.shutdown()
    if lost:
        sys.exit(f"{lost} rows found no room: the figures would be too good")
    return {name: statistics.median(values) for name, values in found.items()}


def main() -> None:
    """Prints the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--blocks", type=int, default=BLOCKS)
    options = parser.parse_args()
    found = measure(options.blocks)
    sdk = found["OpenTelemetry SDK"]
    if options.json:
        rows = [
            {"row": k, "ns": round(v, 1), "of_sdk": round(v / sdk, 4)} for k, v in found.items()
        ]
        print(json.dumps({"benchmark": "spans", "blocks": options.blocks, "rows": rows}))
        return
    for name, value in found.items():
        print(f"{name:<32} {value:8.0f} ns   {value / sdk:.3f} of an SDK span")


if __name__ == "__main__":
    main()
