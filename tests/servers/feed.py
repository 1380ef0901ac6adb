"""How do series that a test makes up reach the real Prometheus, with a past of their own?"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import urllib3

from otel_mlperf import names
from otel_mlperf.otlp import wire
from otel_mlperf.otlp.histogram import ExponentialBuckets
from otel_mlperf.otlp.metric_encoding import (
    ExponentialPoints,
    GaugePoints,
    MetricData,
    NumberPoint,
    SumPoints,
    encode_metrics,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_mlperf.names import Metric
    from otel_mlperf.otlp.metric_encoding import Data

EVERY_S = 15.0


class Made(NamedTuple):
    """One series: its value as a function of the seconds since it began.

    A counter's is its total, a histogram's the duration of the steps that end then, one a second.
    """

    metric: Metric
    labels: Mapping[str, str]
    course: Callable[[float], float]


def constant(value: float) -> Callable[[float], float]:
    """The same at all times."""
    return lambda _: value


def growing(per_second: float) -> Callable[[float], float]:
    """A total that grows from zero."""
    return lambda age_s: per_second * age_s


def feed(
    endpoint: str,
    resource: Mapping[str, object],
    series: Sequence[Made],
    start_s: float,
    end_s: float,
) -> None:
    """Sends points of every series, one every 15 s from start to end, to an OTLP endpoint."""
    times = np.arange(start_s, end_s + 1, EVERY_S)
    body = encode_metrics(
        wire.encode_resource(resource),
        wire.encode_scope(names.SCOPE),
        [MetricData(m.metric.name, m.metric.unit, "", _data(m, times)) for m in series],
    )
    headers = {"Content-Type": "application/x-protobuf"}
    answer = urllib3.request("POST", f"{endpoint}/v1/metrics", body=body, headers=headers)
    assert answer.status == 200, answer.data


def _data(made: Made, times: np.ndarray) -> Data:
    start_ns = int(times[0] * 1e9)
    if made.metric.instrument == "histogram":
        buckets, points = ExponentialBuckets(), []
        for time_s in times:
            age_s = time_s - times[0]
            points.append(buckets.point(made.labels, start_ns - 1, int(time_s * 1e9)))
            ends = age_s + np.arange(EVERY_S) + 1
            buckets.record(np.array([made.course(at) for at in ends]))
        return ExponentialPoints(points)
    numbers = [
        NumberPoint(
            attributes=made.labels,
            start_ns=start_ns - 1,
            time_ns=int(time_s * 1e9),
            value=float(made.course(time_s - times[0])),
        )
        for time_s in times
    ]
    if made.metric.instrument == "gauge":
        return GaugePoints(numbers)
    return SumPoints(numbers, monotonic=made.metric.instrument == "counter")
