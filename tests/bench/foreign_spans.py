"""What do the spans of a program that traces itself cost through us, beside the OpenTelemetry SDK?

    python tests/bench/foreign_spans.py [--blocks N] [--json]

The loop of ``tests/programs/megatron_like.py``, 53 spans a step as Megatron-LM has them, nine of
them with an attribute, and no work in between. Rows are measured in shuffled blocks with a
collection of garbage before each; ``A/A`` is ours measured a second time: what differs between
those two is noise. The ratio is to the SDK with a batch processor and an exporter that does
nothing, in the same run.
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
from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import NoOpTracer

sys.path.append(str(Path(__file__).parents[1] / "programs"))
from megatron_like import SPANS, train_step

import otel_mlperf as om
from otel_mlperf.journal.layout import Word
from otel_mlperf.recorder.api.otel_tracer import JournalTracer
from otel_mlperf.recorder.core import recording

BLOCKS = 25
STEPS = 20
BAR = 0.15
OURS, AGAIN, SDK, NOTHING = "ours", "ours, A/A", "OpenTelemetry SDK", "no provider"
clock = time.perf_counter_ns


class Null(SpanExporter):
    """An exporter that is faster than any real one."""

    def export(self, spans):
        return SpanExportResult.SUCCESS


def measure(blocks: int = BLOCKS) -> dict[str, float]:
    """Median nanoseconds a step by row."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(Null()))
    ours = JournalTracer({}).start_as_current_span
    rows = {
        OURS: ours,
        AGAIN: ours,
        SDK: provider.get_tracer("bench").start_as_current_span,
        NOTHING: NoOpTracer().start_as_current_span,
    }
    found: dict[str, list[float]] = {name: [] for name in rows}
    order = random.Random(0)
    quiet = {"agent": "none", "console": False, "readings": "none"}
    with tempfile.TemporaryDirectory() as folder, om.start("bench", dir=folder, **quiet):
        recorder = recording.active()
        words = recorder.journal.words
        for block in range(blocks + 2):
            for name in order.sample(list(rows), len(rows)):
                # Nobody reads the journal here: what a block wrote is given free.
                words[Word.TAIL] = recorder.journal.lease.end
                gc.collect()
                began = clock()
                for iteration in range(STEPS):
                    train_step(rows[name], iteration)
                if block >= 2:  # names are registered, and caches warm
                    found[name].append((clock() - began) / STEPS)
        lost = words[Word.LOST_RING_FULL]
        os.unlink(recorder.journal.path)
    provider.shutdown()
    if lost:
        sys.exit(f"{lost} rows found no room: the figures would be too good")
    return {name: statistics.median(values) for name, values in found.items()}


def main() -> None:
    """Prints the table, or JSON; exit code 1 where ours costs more than the bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--blocks", type=int, default=BLOCKS)
    options = parser.parse_args()
    found = measure(options.blocks)
    rows = [
        {"row": name, "step_us": round(ns / 1000, 1), "span_ns": round(ns / SPANS),
         "of_sdk": round(ns / found[SDK], 3)}
        for name, ns in found.items()
    ]  # fmt: skip
    if options.json:
        print(json.dumps({"benchmark": "foreign_spans", "blocks": options.blocks, "rows": rows}))
    else:
        for row in rows:
            print(f"{row['row']:<20} {row['step_us']:8.1f} µs a step {row['span_ns']:7,} ns a span "
                  f"  {row['of_sdk']:.3f} of the SDK's (bar {BAR})")  # fmt: skip
    sys.exit(found[OURS] > BAR * found[SDK])


if __name__ == "__main__":
    main()
