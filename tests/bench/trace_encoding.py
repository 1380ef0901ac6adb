"""How long does a finished profile take until its spans are bytes, beside others?

Two rows. From a finished ``torch.profiler`` window of 100,000 events (aten operators on the CPU) to
the bytes of its requests, with the export that writes the trace file included, beside
``prof.events()`` alone, which every exporter in Python begins with. And from the columns of a
trace to OTLP bytes, every event a span, beside the SDK's encoder, which begins at finished spans.
Each block runs in shuffled order with garbage collected before it, ours twice: the difference of
the two is the noise. A profile can be exported once, so each block records its own, untimed.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans as sdk_encode
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from torch.profiler import ProfilerActivity, profile

from otel_mlperf import names
from otel_mlperf.kineto.convert import Conversion, convert, requests
from otel_mlperf.kineto.spans.budget import Budget

if TYPE_CHECKING:
    from collections.abc import Callable

RESOURCE = {names.SERVICE_NAME: "train"}
BATCH = 512
PROFILE_BAR, ENCODING_BAR = 10, 50
_EVENTS_A_ROUND = 51


def record(events: int) -> Any:
    """A finished profile of about as many events: small layers forward and backward."""
    layer = torch.nn.Linear(8, 8)
    inputs = torch.randn(4, 8)
    with profile(activities=[ProfilerActivity.CPU]) as found:
        for _ in range(events // _EVENTS_A_ROUND):
            torch.relu(layer(inputs)).sum().backward()
    return found


def ours(found: Any, folder: Path) -> int:
    """From the profile to bytes: export, read, link, choose, encode."""
    path = folder / "trace.json"
    found.export_chrome_trace(str(path))
    return sum(len(body) for _, body in requests(convert(path), RESOURCE))


def theirs(found: Any, _: Path) -> int:
    """The list of events that torch makes of a profile."""
    return len(found.events())


def measure_profile(events: int, rounds: int) -> dict[str, Any]:
    """Seconds of both, and their ratio."""
    blocks: dict[str, Callable[[Any, Path], int]] = {"ours": ours, "again": ours, "torch": theirs}
    seconds: dict[str, list[float]] = {name: [] for name in blocks}
    order = list(blocks) * rounds
    random.Random(0).shuffle(order)
    count = 0
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        for name in order:
            found = record(events)
            gc.collect()
            begin = time.perf_counter()
            made = blocks[name](found, Path(folder))
            seconds[name].append(time.perf_counter() - begin)
            count = made if name == "torch" else count
            del found
    median = {name: statistics.median(taken) for name, taken in seconds.items()}
    return {
        "events": count,
        "ours_s": median["ours"],
        "again_s": median["again"],
        "torch_s": median["torch"],
        "ratio": median["torch"] / median["ours"],
        "again_ratio": median["torch"] / median["again"],
    }


def sdk_spans(found: Conversion, most: int) -> list[ReadableSpan]:
    """The first events as the SDK's exporter gets them."""
    resource, scope = Resource(RESOURCE), InstrumentationScope(names.SCOPE)
    events, spans = found.trace.events, found.spans
    made = []
    for part, ints in spans.by_numbers(spans.plan.kept.nonzero()[0][:most]):
        for place, row in enumerate(part.tolist()):
            shared, others = spans.constant(row)
            trace = int.from_bytes(spans.trace_ids[spans.places.trace[row]].tobytes(), "big")
            numbers = {key: int(column[place]) for key, column in ints.items()}
            made.append(
                ReadableSpan(
                    name=found.trace.names[events.name[row]],
                    context=_context(trace, int(spans.ids[row])),
                    parent=_context(trace, int(spans.parents[row])),
                    resource=resource,
                    attributes=shared | others | numbers,
                    kind=SpanKind.INTERNAL,
                    instrumentation_scope=scope,
                    start_time=int(events.start_ns[row]),
                    end_time=int(events.start_ns[row] + events.duration_ns[row]),
                )
            )
    return made


def _context(trace: int, span: int) -> SpanContext:
    return SpanContext(trace, span, is_remote=False, trace_flags=TraceFlags(1))


def measure_encoding(events: int, rounds: int) -> dict[str, Any]:
    """Spans a second of both encoders, and their ratio."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder) / "trace.json"
        record(events).export_chrome_trace(str(path))
        found = convert(path, Budget(spans=None))
    found = replace(found, spans=replace(found.spans, own={}))
    peer = sdk_spans(found, BATCH * 8)

    def encode() -> int:
        fresh = replace(found, spans=replace(found.spans))  # nothing is remembered
        return sum(len(body) for _, body in requests(fresh, RESOURCE))

    def sdk() -> int:
        return sum(
            len(sdk_encode(peer[first : first + BATCH]).SerializeToString())
            for first in range(0, len(peer), BATCH)
        )

    blocks = {"ours": (found.kept, encode), "again": (found.kept, encode), "sdk": (len(peer), sdk)}
    seconds: dict[str, list[float]] = {name: [] for name in blocks}
    order = list(blocks) * rounds
    random.Random(0).shuffle(order)
    for name in order:
        gc.collect()
        begin = time.perf_counter()
        blocks[name][1]()
        seconds[name].append(time.perf_counter() - begin)
    rate = {name: blocks[name][0] / statistics.median(taken) for name, taken in seconds.items()}
    return {
        "spans": found.kept,
        "ours_spans_per_s": rate["ours"],
        "again_spans_per_s": rate["again"],
        "sdk_spans_per_s": rate["sdk"],
        "ratio": rate["ours"] / rate["sdk"],
        "again_ratio": rate["again"] / rate["sdk"],
    }


def report(whole: dict[str, Any], encoding: dict[str, Any]) -> None:
    """The table for people."""
    print(f"finished profile of {whole['events']:,} events to bytes (bar: {PROFILE_BAR} x)")
    print(
        f"  prof.events() alone {whole['torch_s']:.2f} s, ours {whole['ours_s']:.2f} s, "
        f"again {whole['again_s']:.2f} s: {whole['ratio']:.1f}x, {whole['again_ratio']:.1f}x"
    )
    print(f"columns of {encoding['spans']:,} events to OTLP (bar: {ENCODING_BAR} x the SDK)")
    print(
        f"  SDK {encoding['sdk_spans_per_s']:,.0f} spans/s, "
        f"ours {encoding['ours_spans_per_s']:,.0f}, again {encoding['again_spans_per_s']:,.0f}: "
        f"{encoding['ratio']:.0f}x, {encoding['again_ratio']:.0f}x"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--events", type=int, default=100_000, help="events of the profile")
    parser.add_argument("--rounds", type=int, default=3, help="blocks of each row")
    options = parser.parse_args()
    whole = measure_profile(options.events, options.rounds)
    encoding = measure_encoding(options.events, options.rounds * 3)
    if options.json:
        print(json.dumps({"profile": whole, "encoding": encoding}))
    else:
        report(whole, encoding)


if __name__ == "__main__":
    main()
