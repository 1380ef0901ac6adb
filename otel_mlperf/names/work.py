"""Metrics of a model's work: its size, and the operations of its steps.

They come from calls of ``model_work`` alone. What could not be counted is in neither sum.
"""

from __future__ import annotations

from typing import Final

from otel_mlperf.names.attributes import HW_MODEL, ML_PHASE
from otel_mlperf.names.metric import Metric

MODEL_NAME: Final = "ml.model.name"
"""The class of the module that was named."""
PARAMETERS_KIND: Final = "ml.model.parameters.kind"
PARAMETERS_TOTAL: Final = "total"
PARAMETERS_TRAINABLE: Final = "trainable"
PARAMETERS_EMBEDDING: Final = "embedding"
"""Parameters of lookup tables, ``torch.nn.Embedding``, which multiply nothing."""
FLOPS_TYPE: Final = "ml.flops.type"
"""The type that matrix products are made in: ``bfloat16``, ``float16``, ``tf32``, ``float32``."""
PEAK_SOURCE: Final = "ml.flops.peak.source"
"""The data sheet of the peak, or ``given``."""

MODEL_PARAMETERS: Final = Metric(
    "ml.model.parameters",
    "{parameter}",
    "gauge",
    "Parameters of a model that the program named: all, those that are trained, lookup tables.",
    (MODEL_NAME, PARAMETERS_KIND),
)
FLOPS: Final = Metric(
    "ml.training.flops",
    "{operation}",
    "counter",
    "Floating point operations of the model in the steps that ended and whose count is known.",
    (ML_PHASE,),
)
FLOPS_TIME: Final = Metric(
    "ml.training.flops.time",
    "s",
    "counter",
    "Time of the steps that are counted in ml.training.flops.",
    (ML_PHASE,),
)
FLOPS_PEAK: Final = Metric(
    "ml.training.flops.peak",
    "{operation_per_second}",
    "gauge",
    "Floating point operations a second that the rank's device can do at most, without sparsity.",
    (FLOPS_TYPE, PEAK_SOURCE, HW_MODEL),
)
