"""Names, units and meanings of every span, attribute and metric.

This is the one vocabulary, as data; nothing else in the package spells these strings. It imports
nothing else of the package. Names with a semantic convention (``process.*``, ``code.*``) follow
OpenTelemetry semantic conventions 1.44. ``ml.*`` is ours where there is none, ``otel_mlperf.*`` our
own health.
"""

from __future__ import annotations

from typing import Final

from otel_mlperf.names import device, health, host_and_process, runtime, section_metrics, training
from otel_mlperf.names.attributes import *  # noqa: F403
from otel_mlperf.names.device import *  # noqa: F403
from otel_mlperf.names.health import *  # noqa: F403
from otel_mlperf.names.host_and_process import *  # noqa: F403
from otel_mlperf.names.metric import *  # noqa: F403
from otel_mlperf.names.metric import Metric
from otel_mlperf.names.runtime import *  # noqa: F403
from otel_mlperf.names.section_metrics import *  # noqa: F403
from otel_mlperf.names.training import *  # noqa: F403

METRICS: Final[tuple[Metric, ...]] = tuple(
    value
    for module in (training, section_metrics, host_and_process, runtime, device, health)
    for value in vars(module).values()
    if isinstance(value, Metric)
)
"""Every metric that the package itself makes."""
