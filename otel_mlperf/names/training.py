"""Metrics of steps, sections and profiler windows, and of the work of a model.

The metrics are derived from the rows and windows of training processes. Rank and run are resource
attributes. The work of a model (size, and operations of its steps) is known only if the user's code
calls ``model_work``. Steps whose operations could not be counted are missing in the sums of both
operations and time.
"""

from __future__ import annotations

from typing import Final

from otel_mlperf.names.attributes import (
    CHECKPOINT_DIRECTION,
    DEVICE_INDEX,
    FINDING_ID,
    FINDING_SEVERITY,
    HW_MODEL,
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
    "Time in a section minus its child sections in the same thread and task; a wait for data "
    "in a step includes its child sections.",
    (SECTION_NAME, SECTION_CATEGORY, ML_PHASE),
)
SECTION_WITHIN: Final = Metric(
    "ml.section.within_bound",
    "{call}",
    "counter",
    "Calls of sections with a duration limit (within_s) that stayed within it and did not fail.",
    (SECTION_NAME, SECTION_CATEGORY, ML_PHASE),
)
SECTION_BOUNDED: Final = Metric(
    "ml.section.bounded",
    "{call}",
    "counter",
    "Calls of sections with a duration limit (within_s).",
    (SECTION_NAME, SECTION_CATEGORY, ML_PHASE),
)
STEPS: Final = Metric("ml.training.steps", "{step}", "counter", "Completed steps.", (ML_PHASE,))
SAMPLES: Final = Metric(
    "ml.training.samples", "{sample}", "counter", "Samples in completed steps.", (ML_PHASE,)
)
TOKENS: Final = Metric(
    "ml.training.tokens", "{token}", "counter", "Tokens in completed steps.", (ML_PHASE,)
)
CHECKPOINT_IO: Final = Metric(
    "ml.checkpoint.io",
    "By",
    "counter",
    "Bytes of checkpoints written and read, by calls whose size is known.",
    (CHECKPOINT_DIRECTION,),
)
CHECKPOINT_IO_TIME: Final = Metric(
    "ml.checkpoint.io.time",
    "s",
    "counter",
    "Duration of the calls counted in ml.checkpoint.io.",
    (CHECKPOINT_DIRECTION,),
)
LOSS: Final = Metric("ml.training.loss", "", "gauge", "Last logged loss.", (ML_PHASE,))
LEARNING_RATE: Final = Metric(
    "ml.training.learning_rate", "", "gauge", "Last logged learning rate.", (ML_PHASE,)
)
GRADIENT_NORM: Final = Metric(
    "ml.training.gradient.norm", "", "gauge", "Last logged gradient norm.", (ML_PHASE,)
)
STEP_NUMBER: Final = Metric(
    "ml.training.step.number", "{step}", "gauge", "Number of the last completed step.", (ML_PHASE,)
)
STEPS_EXPECTED: Final = Metric(
    "ml.training.steps.expected", "{step}", "gauge", "Planned number of training steps of the run."
)
RUN_START_TIME: Final = Metric("ml.run.start_time", "s", "gauge", "Start of the run, Unix time.")
RUN_CPU: Final = Metric(
    "ml.run.cpu.time",
    "s",
    "counter",
    "CPU time of the training process since the start of the run, without its worker processes.",
)
RUN_IMPORTS: Final = Metric(
    "ml.run.imports.time",
    "s",
    "gauge",
    "Time from the start of the training process to the start of the run, mostly imports.",
)
GRAPH_NODES: Final = Metric(
    "pytorch.autograd.graph.nodes",
    "{node}",
    "gauge",
    "Operations in the autograd graph of the 2nd, 20th and 200th backward pass; at most 20,000.",
)
GRAPH_SELECTS: Final = Metric(
    "pytorch.autograd.graph.selects",
    "{node}",
    "gauge",
    "Operations in the autograd graph that select one element along a dimension, as a loop "
    "over time does.",
)
GRAPH_WEIGHTS: Final = Metric(
    "pytorch.autograd.graph.weights",
    "{weight}",
    "gauge",
    "Weights in that autograd graph; far fewer than operations if a loop reuses them.",
)
GRAPH_FLOAT32: Final = Metric(
    "pytorch.autograd.graph.float32_operations",
    "{operation}",
    "gauge",
    "Lower bound of the floating point operations of a forward and backward pass in matrix "
    "products (torch.mm, addmm: linear layers) that a CUDA device computes in float32 without "
    "TF32.",
)
GRAPH_DOUBLE: Final = Metric(
    "pytorch.autograd.graph.double_precision",
    "1",
    "gauge",
    "Share of the matrix products and convolutions in that autograd graph that compute in float64.",
)
GRAPH_UNUSED_ROWS: Final = Metric(
    "pytorch.autograd.graph.unused_rows",
    "1",
    "gauge",
    "Share of the trained parameters that are rows of embedding tables which the pass does not "
    "use, although the gradient of the table is dense: lower bound.",
)
GRAPH_CHECKPOINTS: Final = Metric(
    "pytorch.autograd.checkpoint.calls",
    "{call}",
    "gauge",
    "Calls of torch.utils.checkpoint for each backward pass, which computes the forward pass of "
    "these parts again; mean up to the 2nd, 20th and 200th pass.",
)
AUTOGRAD_ANOMALY: Final = Metric(
    "pytorch.autograd.anomaly_detection",
    "1",
    "gauge",
    "1 if torch.autograd.set_detect_anomaly() is enabled, else 0.",
)
OPTIMIZER_HISTORY: Final = Metric(
    "pytorch.optimizer.history.limit",
    "By",
    "gauge",
    "Maximum host memory of the history of an optimizer such as L-BFGS, computed from its "
    "history_size and parameters; read at the 2nd, 20th and 200th update.",
)
DDP_EXPOSED_COMMUNICATION: Final = Metric(
    "pytorch.ddp.backward.exposed_communication",
    "s",
    "gauge",
    "Time of a backward pass in which DDP's collectives ran while nothing was computed, waits "
    "for other ranks included: mean of the passes that DDP times itself (the first ten, then "
    "each hundredth), read at the 20th, 200th and 2,000th pass.",
)
DDP_BUCKETS: Final = Metric(
    "pytorch.ddp.backward.buckets",
    "{bucket}",
    "gauge",
    "Buckets in which DDP exchanges the gradients of a backward pass, one collective each; "
    "read at the 20th, 200th and 2,000th pass.",
)
DDP_GRADIENTS: Final = Metric(
    "pytorch.ddp.backward.gradients.size",
    "By",
    "gauge",
    "Size of the gradients that DDP exchanges in a backward pass, before a communication hook "
    "compresses them.",
)
COLLECTIVES: Final = Metric(
    "pytorch.distributed.collectives",
    "{collective}",
    "gauge",
    "Collectives for each optimizer update, including those of DDP and FSDP, as the process "
    "groups (Gloo, NCCL) count them: mean from the 2nd to the 20th update, then to the 200th. "
    "If the program reports its steps itself: collectives for each step.",
)
OTHER_UPDATES: Final = Metric(
    "pytorch.optimizer.other_updates",
    "{update}",
    "gauge",
    "Optimizer updates in threads and asyncio tasks other than that of the training loop; no "
    "recorded step contains them.",
)
OTHER_LOOPS: Final = Metric(
    "pytorch.optimizer.other_loops",
    "{loop}",
    "gauge",
    "Threads and asyncio tasks other than that of the training loop in which an optimizer made "
    "updates.",
)
STARTED_PROCESSES: Final = Metric(
    "pytorch.multiprocessing.processes",
    "{process}",
    "gauge",
    "Processes that the program started with multiprocessing, without workers of DataLoaders "
    "and pools.",
)
FINDING: Final = Metric(
    "ml.finding",
    "",
    "gauge",
    "1 while the condition of a live finding is met; further attributes name its section or "
    "device.",
    (FINDING_ID, FINDING_SEVERITY),
)
RUN_PRODUCTIVE: Final = Metric(
    "ml.run.productive.time",
    "s",
    "counter",
    "Time of training and prediction steps that did not fail, without compilation and waits for "
    "training data.",
)
RUN_MEMORY_PEAK: Final = Metric(
    "ml.run.memory.peak",
    "By",
    "gauge",
    "Peak resident memory of the training process since the start of the run; if the peak of "
    "the process is older than the run, the maximum of one reading a second.",
)
LAST_STEP_TIME: Final = Metric(
    "ml.run.last_step_time", "s", "gauge", "End of the last completed step, Unix time."
)
OPEN_AGE: Final = Metric(
    "ml.section.open.age",
    "s",
    "gauge",
    "Age of the innermost open section of the main thread.",
    (SECTION_NAME,),
)
WINDOW_EVENTS: Final = Metric(
    "pytorch.profiler.events", "{event}", "gauge", "Events in the last profiler window."
)
WINDOW_COMPLETENESS: Final = Metric(
    "pytorch.profiler.completeness",
    "1",
    "gauge",
    "Completeness of a profiler window: the lowest share over kinds of record, e.g. launches "
    "with device work.",
)
WINDOW_DEVICE_BUSY: Final = Metric(
    "pytorch.profiler.device.busy",
    "1",
    "gauge",
    "Share of a profiler window in which the device was busy with kernels, copies or memsets.",
    (DEVICE_INDEX,),
)
WINDOW_DEVICE_IDLE: Final = Metric(
    "pytorch.profiler.device.idle",
    "1",
    "gauge",
    "Share of a profiler window in which the device was idle.",
    (DEVICE_INDEX,),
)
WINDOW_DEVICE_COMMUNICATION: Final = Metric(
    "pytorch.profiler.device.communication",
    "1",
    "gauge",
    "Share of a profiler window in which a kernel of a communication library ran.",
    (DEVICE_INDEX,),
)
WINDOW_DEVICE_EXPOSED: Final = Metric(
    "pytorch.profiler.device.exposed_communication",
    "1",
    "gauge",
    "Share of a profiler window in which a communication kernel ran without concurrent "
    "computation.",
    (DEVICE_INDEX,),
)
WINDOW_HOST_BUSY: Final = Metric(
    "pytorch.profiler.host.busy",
    "1",
    "gauge",
    "Share of a profiler window without device work in which an operator ran on some thread.",
)
WINDOW_HOST_IDLE: Final = Metric(
    "pytorch.profiler.host.idle",
    "1",
    "gauge",
    "Share of a profiler window without device work in which no operator ran.",
)
WINDOW_HOST_COMMUNICATION: Final = Metric(
    "pytorch.profiler.host.communication",
    "1",
    "gauge",
    "Share of a profiler window without device work in which a collective was in progress.",
)
WINDOW_HOST_EXPOSED: Final = Metric(
    "pytorch.profiler.host.exposed_communication",
    "1",
    "gauge",
    "Share of a profiler window without device work in which a collective was in progress and "
    "no operator ran.",
)

LOGGED: Final = {
    "loss": LOSS,
    "lr": LEARNING_RATE,
    "learning_rate": LEARNING_RATE,
    "grad_norm": GRADIENT_NORM,
}
"""Metrics of special names in calls of ``log()``; all other names become ``ml.user.<name>``."""


MODEL_NAME: Final = "ml.model.name"
"""Class of the module that was passed to ``model_work``."""
PARAMETERS_KIND: Final = "ml.model.parameters.kind"
PARAMETERS_TOTAL: Final = "total"
PARAMETERS_TRAINABLE: Final = "trainable"
PARAMETERS_EMBEDDING: Final = "embedding"
"""Kind for parameters of lookup tables (``torch.nn.Embedding``), which need no multiplications."""
FLOPS_TYPE: Final = "ml.flops.type"
"""Type of matrix products: ``bfloat16``, ``float16``, ``tf32`` or ``float32``."""
PEAK_SOURCE: Final = "ml.flops.peak.source"
"""Data sheet with the peak, or ``given`` (configured by the user's code)."""

MODEL_PARAMETERS: Final = Metric(
    "ml.model.parameters",
    "{parameter}",
    "gauge",
    "Parameters of a model that was passed to model_work(): total, trainable, embedding.",
    (MODEL_NAME, PARAMETERS_KIND),
)
FLOPS: Final = Metric(
    "ml.training.flops",
    "{operation}",
    "counter",
    "Floating point operations of the model in completed steps with a known count.",
    (ML_PHASE,),
)
FLOPS_TIME: Final = Metric(
    "ml.training.flops.time",
    "s",
    "counter",
    "Duration of the steps counted in ml.training.flops.",
    (ML_PHASE,),
)
FLOPS_PEAK: Final = Metric(
    "ml.training.flops.peak",
    "{operation_per_second}",
    "gauge",
    "Peak floating point operations per second of the rank's device, without sparsity.",
    (FLOPS_TYPE, PEAK_SOURCE, HW_MODEL),
)
