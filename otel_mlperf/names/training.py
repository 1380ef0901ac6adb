"""What is measured of steps and sections?

From the rows of the training processes; rank and run are attributes of the resource.
"""

from __future__ import annotations

from typing import Final

from otel_mlperf.names.attributes import (
    ML_PHASE,
    SECTION_CATEGORY,
    SECTION_NAME,
)
from otel_mlperf.names.metric import Metric

STEP_DURATION: Final = Metric(
    "ml.training.step.duration",
    "s",
    "histogram",
    "Time of one step: data wait and work, without a validation or checkpoint inside it.",
    (ML_PHASE,),
)
SECTION_DURATION: Final = Metric(
    "ml.section.duration",
    "s",
    "histogram",
    "Time from entering to leaving a section.",
    (SECTION_NAME, SECTION_CATEGORY, ML_PHASE),
)
SECTION_SELF_TIME: Final = Metric(
    "ml.section.self_time",
    "s",
    "counter",
    "Time in a section outside its child sections of the same thread and task.",
    (SECTION_NAME, SECTION_CATEGORY, ML_PHASE),
)
STEPS: Final = Metric("ml.training.steps", "{step}", "counter", "Steps that ended.", (ML_PHASE,))
SAMPLES: Final = Metric(
    "ml.training.samples", "{sample}", "counter", "Samples in the steps that ended.", (ML_PHASE,)
)
TOKENS: Final = Metric(
    "ml.training.tokens", "{token}", "counter", "Tokens in the steps that ended.", (ML_PHASE,)
)
LOSS: Final = Metric("ml.training.loss", "", "gauge", "Loss as last logged.", (ML_PHASE,))
LEARNING_RATE: Final = Metric(
    "ml.training.learning_rate", "", "gauge", "Learning rate as last logged.", (ML_PHASE,)
)
GRADIENT_NORM: Final = Metric(
    "ml.training.gradient.norm", "", "gauge", "Gradient norm as last logged.", (ML_PHASE,)
)
STEP_NUMBER: Final = Metric(
    "ml.training.step.number", "{step}", "gauge", "Number of the step that ended last.", (ML_PHASE,)
)
STEPS_EXPECTED: Final = Metric(
    "ml.training.steps.expected", "{step}", "gauge", "Training steps that the run plans."
)
RUN_START_TIME: Final = Metric("ml.run.start_time", "s", "gauge", "When the run began, Unix time.")
LAST_STEP_TIME: Final = Metric(
    "ml.run.last_step_time", "s", "gauge", "When a step ended last, Unix time."
)
OPEN_AGE: Final = Metric(
    "ml.section.open.age",
    "s",
    "gauge",
    "For how long the innermost open section of the main thread has been open.",
    (SECTION_NAME,),
)

LOGGED: Final = {
    "loss": LOSS,
    "lr": LEARNING_RATE,
    "learning_rate": LEARNING_RATE,
    "grad_norm": GRADIENT_NORM,
}
"""Names given to ``log()`` that have a metric of their own; others become ``ml.user.<name>``."""
