"""How many spans a second become OTLP bytes, beside the SDK's encoder?

Rows of one run, in shuffled order with garbage collected before each block: our encoder twice (the
difference of the two is the noise), and the SDK's, which begins at finished spans, in its batches
of 512. Spans have no attributes, or four (three numbers and a text), of 50 names and 40 texts.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans as sdk_encode
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags

from otel_mlperf.otlp import wire
from otel_mlperf.otlp.span_content import span_tail
from otel_mlperf.otlp.span_encoding import SpanColumns, encode_spans

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH = 512
NAMES = [f"aten::op_{i}" for i in range(30)] + [
    f"void at::native::vectorized_elementwise_kernel<{i}, at::native::FillFunctor<float>>(int)"
    for i in range(20)
]
SHAPES = [f"[[{2 ** (i % 8)}, {i}], [{i}]]" for i in range(40)]
TRACE = bytes(range(16))
BAR = 50


def columns(count: int, *, attributes: bool) -> SpanColumns:
    """Spans as the agent has them."""
    rng = np.random.default_rng(1)
    kinds = [(name, shape) for name in NAMES for shape in (SHAPES if attributes else [""])]
    start = 1_760_000_000_000_000_000 + np.cumsum(rng.integers(1000, 9000, count))
    ints = {
        "gpu.device": rng.integers(0, 8, count),
        "gpu.stream": rng.integers(0, 64, count),
        "gpu.correlation_id": np.arange(count) + 1,
    }
    return SpanColumns(
        trace_id=np.tile(np.frombuffer(TRACE, np.uint8), (count, 1)),
        span_id=rng.integers(1, 2**63, count, dtype=np.uint64),
        parent_id=rng.integers(1, 2**63, count, dtype=np.uint64),
        start_ns=start.astype(np.uint64),
        end_ns=(start + rng.integers(500, 90_000, count)).astype(np.uint64),
        tail=rng.integers(0, len(kinds), count, dtype=np.int32),
        tails=[span_tail(name, {"shapes": shape} if shape else {}) for name, shape in kinds],
        ints=ints if attributes else {},
    )


def sdk_spans(source: SpanColumns, *, attributes: bool) -> list[ReadableSpan]:
    """The same spans as the SDK's exporter gets them."""
    resource, scope = Resource({"service.name": "train"}), InstrumentationScope("otel_mlperf")
    trace = int.from_bytes(TRACE, "big")
    texts = len(SHAPES) if attributes else 1

    def context(span_id: int) -> SpanContext:
        return SpanContext(trace, span_id, is_remote=False, trace_flags=TraceFlags(1))

    def more(row: int, tail: int) -> dict[str, Any]:
        numbers = {key: int(column[row]) for key, column in source.ints.items()}
        return {"shapes": SHAPES[tail % texts], **numbers} if attributes else {}

    rows = zip(
        source.span_id.tolist(),
        source.parent_id.tolist(),
        source.start_ns.tolist(),
        source.end_ns.tolist(),
        source.tail.tolist(),
        strict=True,
    )
    return [
        ReadableSpan(
            name=NAMES[tail // texts],
            context=context(span),
            parent=context(parent),
            resource=resource,
            attributes=more(row, tail),
            kind=SpanKind.INTERNAL,
            instrumentation_scope=scope,
            start_time=start,
            end_time=end,
        )
        for row, (span, parent, start, end, tail) in enumerate(rows)
    ]


def rates(blocks: dict[str, tuple[int, Callable[[], int]]], rounds: int) -> dict[str, float]:
    """The median spans per second of each block, of ``rounds`` in shuffled order."""
    seconds: dict[str, list[float]] = {name: [] for name in blocks}
    order = list(blocks) * rounds
    random.Random(0).shuffle(order)
    for _, block in blocks.values():
        block()
    for name in order:
        gc.collect()
        begin = time.perf_counter()
        blocks[name][1]()
        seconds[name].append(time.perf_counter() - begin)
    return {name: blocks[name][0] / statistics.median(times) for name, times in seconds.items()}


def measure(count: int, rounds: int, *, attributes: bool) -> dict[str, Any]:
    """Rates, ratio to the SDK and bytes per span for one shape of spans."""
    source = columns(count, attributes=attributes)
    peer = sdk_spans(source.rows(0, BATCH * 8), attributes=attributes)
    resource = wire.encode_resource({"service.name": "train"})
    scope = wire.encode_scope("otel_mlperf")

    def ours() -> int:
        return len(encode_spans(resource, scope, source))

    def sdk() -> int:
        return sum(
            len(sdk_encode(peer[first : first + BATCH]).SerializeToString())
            for first in range(0, len(peer), BATCH)
        )

    found = rates({"ours": (count, ours), "again": (count, ours), "sdk": (len(peer), sdk)}, rounds)
    return {
        "attributes": 4 if attributes else 0,
        "ours_spans_per_s": found["ours"],
        "again_spans_per_s": found["again"],
        "sdk_spans_per_s": found["sdk"],
        "ratio": found["ours"] / found["sdk"],
        "again_ratio": found["again"] / found["sdk"],
        "bytes_per_span": ours() / count,
        "sdk_bytes_per_span": sdk() / len(peer),
    }


def report(results: list[dict[str, Any]]) -> None:
    """The table for people."""
    print(f"columns to OTLP bytes, spans/s (bar: {BAR} x the SDK's encoder)")
    print(f"{'':<14} {'SDK':>10} {'ours':>12} {'again':>12} {'ratio':>7} {'again':>7}  bytes/span")
    for row in results:
        print(
            f"{row['attributes']} attributes   {row['sdk_spans_per_s']:>10,.0f} "
            f"{row['ours_spans_per_s']:>12,.0f} {row['again_spans_per_s']:>12,.0f} "
            f"{row['ratio']:>6.0f}x {row['again_ratio']:>6.0f}x  "
            f"{row['bytes_per_span']:.0f} (SDK {row['sdk_bytes_per_span']:.0f})"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--spans", type=int, default=20_000, help="spans per request")
    parser.add_argument("--rounds", type=int, default=9, help="blocks of each row")
    options = parser.parse_args()
    results = [
        measure(options.spans, options.rounds, attributes=attributes)
        for attributes in (False, True)
    ]
    if options.json:
        print(json.dumps({"encoder": results}))
    else:
        report(results)


if __name__ == "__main__":
    main()
