"""What does recording a number cost, beside prometheus_client's and OpenTelemetry's instruments?

Rows are measured in shuffled blocks with a collection of garbage before each, inside a step that is
kept, as in a training. ``A/A`` is the plain counter measured a second time: what differs between
those two is noise. Each ratio is to prometheus_client's row for the same in the same run.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import tempfile
import time
from typing import TYPE_CHECKING, NamedTuple

import prometheus_client
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import otel_mlperf as om

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCKS = 15
CALLS = 5_000
BARS = {"counter": 0.4, "gauge": 0.4, "histogram": 0.6}
clock = time.perf_counter_ns
VALUES = [0.001 * 1.01**n for n in range(500)] * (CALLS // 500)


class Row(NamedTuple):
    """One way of recording, by one library."""

    instrument: str
    how: str
    library: str
    loop: Callable[[], None]


def _loop(made, call: str) -> Callable[[], None]:
    """``call`` for each value, written out as a program would: an attribute is looked up."""
    place = {"made": made, "values": VALUES}
    exec(f"def loop():\n for value in values:\n  made.{call}", place)
    return place["loop"]


def _own() -> list[Row]:
    found = []
    for instrument, make, method in (
        ("counter", om.counter, "add"), ("gauge", om.gauge, "set"),
        ("histogram", om.histogram, "record"),
    ):  # fmt: skip
        made = make(f"own.{instrument}")
        found += [
            Row(instrument, "plain", "own", _loop(made, f"{method}(value)")),
            Row(instrument, "label in the call", "own", _loop(made, f"{method}(value, lang='de')")),
            Row(instrument, "bound label", "own",
                _loop(made.labels(lang="de"), f"{method}(value)")),
        ]  # fmt: skip
    return [
        *found,
        Row("counter", "an integer", "own", _loop(om.counter("own.n"), "add(3)")),
        Row("counter", "plain, A/A", "own", _loop(om.counter("own.counter"), "add(value)")),
    ]


def _prometheus() -> list[Row]:
    found = []
    registry = prometheus_client.CollectorRegistry()
    for instrument, make, method in (
        ("counter", prometheus_client.Counter, "inc"), ("gauge", prometheus_client.Gauge, "set"),
        ("histogram", prometheus_client.Histogram, "observe"),
    ):  # fmt: skip
        plain = make(f"{instrument}_plain", "-", registry=registry)
        made = make(f"{instrument}_labelled", "-", ["lang"], registry=registry)
        found += [
            Row(instrument, "plain", "prometheus", _loop(plain, f"{method}(value)")),
            Row(instrument, "label in the call", "prometheus",
                _loop(made, f"labels(lang='de').{method}(value)")),
            Row(instrument, "bound label", "prometheus",
                _loop(made.labels(lang="de"), f"{method}(value)")),
        ]  # fmt: skip
    whole = prometheus_client.Counter("whole", "-", registry=registry)
    return [*found, Row("counter", "an integer", "prometheus", _loop(whole, "inc(3)"))]


def _opentelemetry(provider: MeterProvider) -> list[Row]:
    meter, found = provider.get_meter("bench"), []
    for instrument, made, method in (
        ("counter", meter.create_counter("c"), "add"), ("gauge", meter.create_gauge("g"), "set"),
        ("histogram", meter.create_histogram("h"), "record"),
    ):  # fmt: skip
        found += [
            Row(instrument, "plain", "opentelemetry", _loop(made, f"{method}(value)")),
            Row(instrument, "label in the call", "opentelemetry",
                _loop(made, f"{method}(value, {{'lang': 'de'}})")),
        ]  # fmt: skip
    return found


def measure(blocks: int = BLOCKS) -> dict[tuple[str, str, str], float]:
    """Median nanoseconds a call by instrument, way and library."""
    provider = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    rows = [*_own(), *_prometheus(), *_opentelemetry(provider)]
    found: dict[tuple[str, str, str], list[float]] = {row[:3]: [] for row in rows}
    order = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        run = om.start("bench", dir=folder, agent="none", console=False)
        journal = run._recorder.journal
        with run, om.step(), om.span("work"):
            for row in order.sample(rows, len(rows)) * 2:
                row.loop()
            for _ in range(blocks):
                for row in order.sample(rows, len(rows)):
                    gc.collect()
                    began = clock()
                    row.loop()
                    found[row[:3]].append((clock() - began) / CALLS)
        os.unlink(journal.path)
    provider.shutdown()
    return {key: statistics.median(values) for key, values in found.items()}


def main() -> None:
    """Prints the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--blocks", type=int, default=BLOCKS)
    options = parser.parse_args()
    found = measure(options.blocks)
    rows = [
        {
            "instrument": instrument,
            "how": how,
            "ns": round(ns, 1),
            "of_prometheus": round(ns / peers["prometheus"], 3),
            "bar": BARS[instrument],
            "peers": {name: round(peer, 1) for name, peer in peers.items()},
        }
        for (instrument, how, library), ns in found.items()
        if library == "own" and (peers := _peers(found, instrument, how))
    ]
    if options.json:
        print(json.dumps({"benchmark": "instruments", "blocks": options.blocks, "rows": rows}))
        return
    for row in rows:
        peers = "   ".join(f"{name} {ns:6.0f} ns" for name, ns in row["peers"].items())
        share = f"{row['of_prometheus']:.3f} of prometheus_client (bar {row['bar']})"
        print(f"{row['instrument']:<10} {row['how']:<18} {row['ns']:6.0f} ns   {share}   {peers}")


def _peers(found, instrument, how) -> dict[str, float]:
    key = (instrument, how.removesuffix(", A/A"))
    return {
        name: found[*key, name] for name in ("prometheus", "opentelemetry") if (*key, name) in found
    }


if __name__ == "__main__":
    main()
