"""How is every span, attribute and metric called, in which unit, and what does it mean?

The one vocabulary, as data; nothing else in the package spells these strings. It imports nothing of
the package. Names with a semantic convention (``process.*``, ``code.*``) follow OpenTelemetry
semantic conventions 1.44; ``ml.*`` is ours where there is none, ``otel_mlperf.*`` our own health.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"
SCOPE: Final = "otel_mlperf"

Instrument = Literal["counter", "gauge", "updowncounter", "histogram"]

# Phases: what a loop of steps is for.
TRAIN: Final = "train"
PHASES: Final = ("train", "validate", "test", "predict")

# Categories: what kind of work a section does.
DATA_LOADING: Final = "data_loading"
FORWARD: Final = "forward"
BACKWARD: Final = "backward"
OPTIMIZER: Final = "optimizer"
COMMUNICATION: Final = "communication"
CHECKPOINT: Final = "checkpoint"
KERNEL: Final = "kernel"
PROFILER: Final = "profiler"
OPERATOR: Final = "operator"
STEP: Final = "step"
EPOCH: Final = "epoch"
PHASE: Final = "phase"
RUN: Final = "run"
OTHER: Final = "other"

# Span names that the package itself gives.
SPAN_RUN: Final = "run"
SPAN_EPOCH: Final = "train.epoch"
SPAN_DATA: Final = "data.load"
SPAN_MICRO_STEP: Final = "micro_step"
SPAN_SEGMENT: Final = "segment"
SPAN_PROFILER_START: Final = "profiler.start"
SPAN_PROFILER_EXPORT: Final = "profiler.export"
SPAN_DOCTOR: Final = "doctor.check"
SERVICE_DOCTOR: Final = "otel-mlperf-doctor"


def step_span(phase: str) -> str:
    """The name of a step's span in ``phase``: ``train.step``."""
    return f"{phase}.step"


CATEGORY_OF: Final = {
    "data.load": DATA_LOADING,
    "data_loading": DATA_LOADING,
    "dataloader": DATA_LOADING,
    "collate": DATA_LOADING,
    "forward": FORWARD,
    "loss": FORWARD,
    "backward": BACKWARD,
    "optimizer": OPTIMIZER,
    "optimizer.step": OPTIMIZER,
    "zero_grad": OPTIMIZER,
    "checkpoint": CHECKPOINT,
    "checkpoint.save": CHECKPOINT,
    "checkpoint.load": CHECKPOINT,
    "save_checkpoint": CHECKPOINT,
    "load_checkpoint": CHECKPOINT,
    "all_reduce": COMMUNICATION,
    "all_gather": COMMUNICATION,
    "reduce_scatter": COMMUNICATION,
    "broadcast": COMMUNICATION,
    "all_to_all": COMMUNICATION,
    "barrier": COMMUNICATION,
}
"""The category that a section's name implies when none is given."""

# Resource attributes.
SERVICE_NAME: Final = "service.name"
SERVICE_INSTANCE_ID: Final = "service.instance.id"
HOST_NAME: Final = "host.name"
RUN_ID: Final = "ml.run.id"
RUN_NAME: Final = "ml.run.name"
RANK: Final = "ml.distributed.rank"
LOCAL_RANK: Final = "ml.distributed.local_rank"
WORLD_SIZE: Final = "ml.distributed.world_size"
RESTART: Final = "ml.distributed.restart_count"

# Span attributes.
ML_PHASE: Final = "ml.phase"
SECTION_NAME: Final = "ml.section.name"
SECTION_CATEGORY: Final = "ml.section.category"
TRAINING_EPOCH: Final = "ml.training.epoch"
TRAINING_STEP: Final = "ml.training.step"
MICRO_STEP: Final = "ml.training.micro_step"
BATCH_SIZE: Final = "ml.batch.size"
BATCH_TOKENS: Final = "ml.batch.tokens"
THREAD_ID: Final = "thread.id"
THREAD_NAME: Final = "thread.name"
ERROR_TYPE: Final = "error.type"
EXCEPTION_TYPE: Final = "exception.type"
EXCEPTION_MESSAGE: Final = "exception.message"
EXCEPTION_STACKTRACE: Final = "exception.stacktrace"
CODE_FUNCTION: Final = "code.function.name"
CODE_FILE: Final = "code.file.path"
CODE_LINE: Final = "code.line.number"
RESULT: Final = "ml.result."
"""In front of each name given to ``Run.result()``."""
KEPT: Final = "otel_mlperf.kept"
INTERRUPTED: Final = "otel_mlperf.interrupted"
INTERRUPTED_WORDS: Final = "the process ended while this section was open"
"""The status message of such a span."""
SEGMENT_OF: Final = "otel_mlperf.segment.of"
ROLLED_UP: Final = "otel_mlperf.rolled_up.count"
ROLLED_UP_SUM: Final = "otel_mlperf.rolled_up.sum"
ROLLED_UP_MIN: Final = "otel_mlperf.rolled_up.min"
ROLLED_UP_MAX: Final = "otel_mlperf.rolled_up.max"
OUTCOME: Final = "otel_mlperf.outcome"
SIGNAL: Final = "otel_mlperf.signal"
DESTINATION: Final = "otel_mlperf.destination"
OVERFLOW: Final = "otel.metric.overflow"

# Span attributes of what a profiler window holds.
PROFILER_ACTIVITY: Final = "pytorch.profiler.activity"
"""What kind of event it is, as Kineto calls it: ``cpu_op``, ``kernel``, ``gpu_memcpy``, …"""
ASYNCHRONOUS: Final = "pytorch.profiler.asynchronous"
"""True: it ran on a device beside its parent, which launched it, and may end after it."""
SEQUENCE_NUMBER: Final = "pytorch.sequence_number"
INPUT_SHAPES: Final = "pytorch.operator.input_shapes"
INPUT_TYPES: Final = "pytorch.operator.input_types"
DEVICE_INDEX: Final = "cuda.device.index"
STREAM_ID: Final = "cuda.stream.id"
CORRELATION_ID: Final = "cuda.correlation_id"
KERNEL_GRID: Final = "cuda.kernel.grid"
KERNEL_BLOCK: Final = "cuda.kernel.block"
KERNEL_REGISTERS: Final = "cuda.kernel.registers_per_thread"
KERNEL_SHARED_MEMORY: Final = "cuda.kernel.shared_memory"
KERNEL_OCCUPANCY: Final = "cuda.kernel.occupancy"
"""Share of the warps that a multiprocessor can hold, as estimated by Kineto."""
MEMCPY_KIND: Final = "cuda.memcpy.kind"
MEMCPY_SIZE: Final = "cuda.memcpy.size"
"""Bytes of a copy or memset."""
COLLECTIVE_OPERATION: Final = "ml.collective.operation"
COLLECTIVE_BACKEND: Final = "ml.collective.backend"
COLLECTIVE_GROUP: Final = "ml.collective.process_group.name"
COLLECTIVE_GROUP_SIZE: Final = "ml.collective.process_group.size"
COLLECTIVE_SIZE: Final = "ml.collective.message.size"
COLLECTIVE_TYPE: Final = "ml.collective.element.type"
COLLECTIVE_SEQUENCE: Final = "ml.collective.sequence_number"


class Metric(NamedTuple):
    """One metric: what it is called, counted in and means."""

    name: str
    unit: str
    """UCUM; empty where Prometheus would append a wrong word."""
    instrument: Instrument
    meaning: str
    labels: tuple[str, ...] = ()
    """Point attributes; rank and run are attributes of the resource."""

    @property
    def prometheus(self) -> str:
        """The name in Prometheus, by its OTLP rules (UnderscoreEscapingWithSuffixes)."""
        word = _UNIT_WORDS.get(self.unit, "")
        name = self.name.replace(".", "_")
        if self.unit == "1" and self.instrument == "gauge":
            word = "ratio"
        if word and word not in name.split("_"):
            name = f"{name}_{word}"
        return f"{name}_total" if self.instrument == "counter" else name


_UNIT_WORDS: Final = {"s": "seconds", "By": "bytes", "W": "watts", "Hz": "hertz", "J": "joules"}

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
PROCESS_CPU_TIME: Final = Metric(
    "process.cpu.time", "s", "counter", "CPU time of the process.", ("cpu.mode",)
)
PROCESS_MEMORY: Final = Metric(
    "process.memory.usage", "By", "updowncounter", "Resident memory of the process."
)
ITEMS: Final = Metric(
    "otel_mlperf.items",
    "{item}",
    "counter",
    "What became of the items: delivered, rolled_up, unselected, lost.",
    (SIGNAL, DESTINATION, OUTCOME, ERROR_TYPE),
)
ITEMS_CREATED: Final = Metric(
    "otel_mlperf.items.created",
    "{item}",
    "counter",
    "Items that there were: section rows, drops of a full ring, metric points.",
    (SIGNAL, DESTINATION),
)
ITEMS_PENDING: Final = Metric(
    "otel_mlperf.items.pending",
    "{item}",
    "gauge",
    "Items that still wait: created = delivered + rolled_up + unselected + lost + pending.",
    (SIGNAL, DESTINATION),
)
OVERHEAD_TIME: Final = Metric(
    "otel_mlperf.overhead.time",
    "s",
    "counter",
    "Time that recording took in the process: sections x the cost measured at its start.",
)
PROFILE_WINDOWS: Final = Metric(
    "otel_mlperf.profile.windows", "{window}", "counter", "Profiler windows whose trace was written."
)
SKIPPED_BUSY: Final = Metric(
    "otel_mlperf.profile.skipped.busy",
    "{window}",
    "counter",
    "Windows left out because another profiler was running.",
)
SKIPPED_NO_TORCH: Final = Metric(
    "otel_mlperf.profile.skipped.no_torch",
    "{window}",
    "counter",
    "Windows left out because the program has not imported torch.",
)
SKIPPED_MEMORY: Final = Metric(
    "otel_mlperf.profile.skipped.memory",
    "{window}",
    "counter",
    "Windows left out because those before have made the process grow too far.",
)
SKIPPED_CUDA_GRAPHS: Final = Metric(
    "otel_mlperf.profile.skipped.cuda_graphs",
    "{window}",
    "counter",
    "Windows left out because CUDA graphs crash under a profiler with CUDA before 12.6.",
)
SKIPPED_FAILED: Final = Metric(
    "otel_mlperf.profile.skipped.failed",
    "{window}",
    "counter",
    "Windows lost because the profiler could not start, or the trace could not be written.",
)
DOCTOR_CHECK: Final = Metric(
    "otel_mlperf.doctor.check", "", "gauge", "Sent by ``otel-mlperf doctor`` to be found again."
)

METRICS: Final[tuple[Metric, ...]] = tuple(
    value for value in list(globals().values()) if isinstance(value, Metric)
)
"""Every metric that the package itself makes."""

LOGGED: Final = {
    "loss": LOSS,
    "lr": LEARNING_RATE,
    "learning_rate": LEARNING_RATE,
    "grad_norm": GRADIENT_NORM,
}
"""Names given to ``log()`` that have a metric of their own; others become ``ml.user.<name>``."""


def user_metric(name: str) -> str:
    """The metric name of a value that the user named: ``ml.user.<name>``."""
    return f"ml.user.{name}"
