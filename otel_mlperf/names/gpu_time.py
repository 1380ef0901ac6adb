"""Metrics and attributes of a GPU's time in sections and steps.

GPU time of a section is the time on the device between the stamps at its start and at its end, in
the stream that was current there.
"""

from __future__ import annotations

from typing import Final

from otel_mlperf.names.attributes import (
    ERROR_TYPE,
    ML_PHASE,
    SECTION_CATEGORY,
    SECTION_NAME,
)
from otel_mlperf.names.metric import Metric
from otel_mlperf.names.section_use import Measure

GPU_NS: Final = Measure(
    "gpu_ns", "ml.section.gpu.time", "time on the GPU from its begin to its end, ns"
)
GPU_IDLE: Final = "ml.step.gpu.idle"
"""For a step: time on the GPU in none of the sections that give it work, ns."""
PACED_BY: Final = "ml.step.paced_by"
"""``host``: the GPU waited for it; ``device``: it was ahead; ``unknown``: the clocks do not decide.
"""

SECTION_GPU: Final = Metric(
    "ml.section.gpu.time",
    "s",
    "counter",
    "Time on the GPU from begin to end of sections; of what is inside too, and of gaps.",
    (SECTION_NAME, SECTION_CATEGORY, ML_PHASE),
)
STEP_GPU: Final = Metric(
    "ml.step.gpu.time",
    "s",
    "counter",
    "Time on the GPU from begin to end of steps, by who set the pace.",
    (ML_PHASE, PACED_BY),
)
STEP_GPU_IDLE: Final = Metric(
    "ml.step.gpu.idle.time",
    "s",
    "counter",
    "Of that, time in no section that gives the GPU work: it idled, if only those do.",
    (ML_PHASE,),
)
GPU_TIME_MISSED: Final = Metric(
    "otel_mlperf.gpu_time.missed",
    "{section}",
    "counter",
    "Sections without GPU time: pool, capture, stream, late, error.",
    (ERROR_TYPE,),
)
