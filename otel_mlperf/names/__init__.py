"""Names, units and meanings of all spans, attributes and metrics.

All other modules use these constants instead of literal names. This package imports no other part
of ``otel_mlperf``. Names with a semantic convention (``process.*``, ``code.*``) follow the
OpenTelemetry semantic conventions 1.44. ``ml.*`` contains names without a convention,
``otel_mlperf.*`` the health of this package.
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
"""All metrics that the package itself emits."""
