"""Metrics of steps, sections and profiler windows, and of the work of a model.

They are derived from the rows and windows of the training processes. Rank and run are attributes of
the resource. The work of a model (its size, and the operations of its steps) comes from calls of
``model_work`` alone. What could not be counted is in neither sum.
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
    "Time in a section outside its child sections of the same thread and task; in a step, time in "
    "a wait for data with those in it.",
    (SECTION_NAME, SECTION_CATEGORY, ML_PHASE),
)
SECTION_WITHIN: Final = Metric(
    "ml.section.within_bound",
    "{call}",
    "counter",
    "Calls of sections with a bound (within_s) that took no longer and did not fail.",
    (SECTION_NAME, SECTION_CATEGORY, ML_PHASE),
)
SECTION_BOUNDED: Final = Metric(
    "ml.section.bounded",
    "{call}",
    "counter",
    "Calls of sections with a bound (within_s).",
    (SECTION_NAME, SECTION_CATEGORY, ML_PHASE),
)
STEPS: Final = Metric("ml.training.steps", "{step}", "counter", "Steps that ended.", (ML_PHASE,))
SAMPLES: Final = Metric(
    "ml.training.samples", "{sample}", "counter", "Samples in the steps that ended.", (ML_PHASE,)
)
TOKENS: Final = Metric(
    "ml.training.tokens", "{token}", "counter", "Tokens in the steps that ended.", (ML_PHASE,)
)
CHECKPOINT_IO: Final = Metric(
    "ml.checkpoint.io",
    "By",
    "counter",
    "Bytes of checkpoints that were written or read, of all calls whose size is known.",
    (CHECKPOINT_DIRECTION,),
)
CHECKPOINT_IO_TIME: Final = Metric(
    "ml.checkpoint.io.time",
    "s",
    "counter",
    "Time of the calls that are counted in ml.checkpoint.io.",
    (CHECKPOINT_DIRECTION,),
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
RUN_CPU: Final = Metric(
    "ml.run.cpu.time",
    "s",
    "counter",
    "CPU time of the training process since the run began, as it counts it; without its workers.",
)
RUN_IMPORTS: Final = Metric(
    "ml.run.imports.time",
    "s",
    "gauge",
    "Time from the begin of the training process to the run's start: imports above all.",
)
GRAPH_NODES: Final = Metric(
    "pytorch.autograd.graph.nodes",
    "{node}",
    "gauge",
    "Operations in the graph of a backward pass: of the 2nd, 20th and 200th; 20,000 at most.",
)
GRAPH_SELECTS: Final = Metric(
    "pytorch.autograd.graph.selects",
    "{node}",
    "gauge",
    "Of these, those that take one element out along a dimension: a loop over time, say.",
)
GRAPH_WEIGHTS: Final = Metric(
    "pytorch.autograd.graph.weights",
    "{weight}",
    "gauge",
    "Weights to which that pass brings gradients: far fewer than operations where they are reused.",
)
GRAPH_FLOAT32: Final = Metric(
    "pytorch.autograd.graph.float32_operations",
    "{operation}",
    "gauge",
    "Floating point operations of a forward and that backward pass in products of matrices "
    "(torch.mm, addmm: linear layers) that a CUDA device makes in float32 without TF32: at least.",
)
AUTOGRAD_ANOMALY: Final = Metric(
    "pytorch.autograd.anomaly_detection",
    "1",
    "gauge",
    "Whether torch.autograd.set_detect_anomaly() is on in that pass: 1, else 0.",
)
OPTIMIZER_HISTORY: Final = Metric(
    "pytorch.optimizer.history.limit",
    "By",
    "gauge",
    "Host memory that the history of an optimizer such as L-BFGS may come to, by its history_size "
    "and parameters; read at the 2nd, 20th and 200th update.",
)
DDP_EXPOSED_COMMUNICATION: Final = Metric(
    "pytorch.ddp.backward.exposed_communication",
    "s",
    "gauge",
    "Time of a backward pass in which DDP's collectives, waits for other ranks included, ran while "
    "it computed nothing: mean of the passes that DDP times itself (the first ten, then each "
    "hundredth), read at the 20th, 200th and 2,000th.",
)
DDP_BUCKETS: Final = Metric(
    "pytorch.ddp.backward.buckets",
    "{bucket}",
    "gauge",
    "Buckets in which DDP exchanges the gradients of a backward pass, each a collective; read at "
    "the 20th, 200th and 2,000th pass.",
)
DDP_GRADIENTS: Final = Metric(
    "pytorch.ddp.backward.gradients.size",
    "By",
    "gauge",
    "Size of these gradients, before a communication hook makes it smaller.",
)
COLLECTIVES: Final = Metric(
    "pytorch.distributed.collectives",
    "{collective}",
    "gauge",
    "Collectives for each update of an optimizer, those inside of DDP and FSDP too, as the process "
    "groups count them (Gloo, NCCL): mean from the 2nd update to the 20th, then to the 200th; of "
    "steps that the program reports itself, for each step.",
)
OTHER_UPDATES: Final = Metric(
    "pytorch.optimizer.other_updates",
    "{update}",
    "gauge",
    "Steps of optimizers in threads and asyncio tasks other than the loop's: they are in no step.",
)
OTHER_LOOPS: Final = Metric(
    "pytorch.optimizer.other_loops",
    "{loop}",
    "gauge",
    "Threads and asyncio tasks that made these.",
)
STARTED_PROCESSES: Final = Metric(
    "pytorch.multiprocessing.processes",
    "{process}",
    "gauge",
    "Processes that the program started with multiprocessing, without workers of loaders and "
    "pools.",
)
FINDING: Final = Metric(
    "ml.finding",
    "",
    "gauge",
    "1 while a finding holds that is judged live; the labels of what it is of come with it.",
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
    "The most memory of the training process that was resident at once, since the run began; where "
    "the process had more before, the most that was read, once a second.",
)
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
WINDOW_EVENTS: Final = Metric(
    "pytorch.profiler.events", "{event}", "gauge", "Events of a profiler window, at its end."
)
WINDOW_COMPLETENESS: Final = Metric(
    "pytorch.profiler.completeness",
    "1",
    "gauge",
    "Smallest share of a kind of record (launches answered by a device, …) that a window has.",
)
WINDOW_DEVICE_BUSY: Final = Metric(
    "pytorch.profiler.device.busy",
    "1",
    "gauge",
    "Share of a profiler window in which the device was at work: kernels, copies, memsets.",
    (DEVICE_INDEX,),
)
WINDOW_DEVICE_IDLE: Final = Metric(
    "pytorch.profiler.device.idle",
    "1",
    "gauge",
    "Share of a profiler window in which it was not.",
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
    "Share of a profiler window in which one ran and nothing was computed beside it.",
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
    "Share of a profiler window without device work in which none did.",
)
WINDOW_HOST_COMMUNICATION: Final = Metric(
    "pytorch.profiler.host.communication",
    "1",
    "gauge",
    "Share of a profiler window without device work in which a collective went on.",
)
WINDOW_HOST_EXPOSED: Final = Metric(
    "pytorch.profiler.host.exposed_communication",
    "1",
    "gauge",
    "Share of a profiler window without device work in which one went on and no operator ran.",
)

LOGGED: Final = {
    "loss": LOSS,
    "lr": LEARNING_RATE,
    "learning_rate": LEARNING_RATE,
    "grad_norm": GRADIENT_NORM,
}
"""Names given to ``log()`` that have a metric of their own; others become ``ml.user.<name>``."""


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
