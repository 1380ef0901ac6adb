"""Names of spans, phases, categories and attributes."""

from __future__ import annotations

from typing import Final

# Phases: the purposes of steps.
TRAIN: Final = "train"
VALIDATE: Final = "validate"
PREDICT: Final = "predict"
PHASES: Final = (TRAIN, VALIDATE, "test", PREDICT)
PHASE_OF: Final = {
    "training": "train",
    "eval": "validate",
    "evaluate": "validate",
    "evaluation": "validate",
    "val": "validate",
    "valid": "validate",
    "validation": "validate",
    "testing": "test",
    "inference": "predict",
    "prediction": "predict",
}
"""Phase that each accepted synonym stands for."""

# Categories: the kinds of work of sections.
DATA_LOADING: Final = "data_loading"
FORWARD: Final = "forward"
BACKWARD: Final = "backward"
TRANSFER: Final = "transfer"
OPTIMIZER: Final = "optimizer"
COMMUNICATION: Final = "communication"
CHECKPOINT: Final = "checkpoint"
KERNEL: Final = "kernel"
PROFILER: Final = "profiler"
OPERATOR: Final = "operator"
STEP: Final = "step"
REQUEST: Final = "request"
EPOCH: Final = "epoch"
PHASE: Final = "phase"
RUN: Final = "run"
DEVICE: Final = "device"
GARBAGE_COLLECTION: Final = "garbage_collection"
COMPILE: Final = "compile"
OTHER: Final = "other"

# Names of spans that the package itself creates.
SPAN_RUN: Final = "run"
SPAN_EPOCH: Final = "train.epoch"
SPAN_DATA: Final = "data.load"
SPAN_LOSS: Final = "loss"
SPAN_TRAINING_STEP: Final = "training_step"
"""Section of a Lightning step: the closure that Lightning passes to the optimizer."""
SPAN_GRAPH_REPLAY: Final = "graph.replay"
"""Replay of a CUDA graph that contains a whole step: forward, backward and optimizer."""
SPAN_CHECKPOINT: Final = "checkpoint"
SPAN_CHECKPOINT_LOAD: Final = "checkpoint.load"
SPAN_MICRO_STEP: Final = "micro_step"
SPAN_SEGMENT: Final = "segment"
SPAN_PROFILER_START: Final = "profiler.start"
SPAN_PROFILER_EXPORT: Final = "profiler.export"
SPAN_COLLECTION: Final = "gc.collect"
SPAN_COMPILE: Final = "compile"
SPAN_DEVICE_LOST: Final = "device.lost"
SPAN_DEVICE_BACK: Final = "device.back"
DEVICE_LOST_ERROR: Final = "DeviceLost"
"""``error.type`` of a ``device.lost`` span; the error message is the driver's."""
SPAN_FINDING: Final = "finding"
SPAN_DOCTOR: Final = "doctor.check"
SERVICE_DOCTOR: Final = "otel-mlperf-doctor"


def step_span(phase: str) -> str:
    """Return the name of a step's span in ``phase``, such as ``train.step``."""
    return f"{phase}.step"


CATEGORY_OF: Final = {
    "data.load": DATA_LOADING,
    "data_loading": DATA_LOADING,
    "dataloader": DATA_LOADING,
    "collate": DATA_LOADING,
    TRANSFER: TRANSFER,
    "forward": FORWARD,
    SPAN_LOSS: FORWARD,
    "backward": BACKWARD,
    "optimizer": OPTIMIZER,
    "optimizer.step": OPTIMIZER,
    "zero_grad": OPTIMIZER,
    SPAN_CHECKPOINT: CHECKPOINT,
    "checkpoint.save": CHECKPOINT,
    SPAN_CHECKPOINT_LOAD: CHECKPOINT,
    "save_checkpoint": CHECKPOINT,
    "load_checkpoint": CHECKPOINT,
    SPAN_COMPILE: COMPILE,
    "all_reduce": COMMUNICATION,
    "all_gather": COMMUNICATION,
    "reduce_scatter": COMMUNICATION,
    "broadcast": COMMUNICATION,
    "all_to_all": COMMUNICATION,
    "barrier": COMMUNICATION,
}
"""Category that a section's name implies if the user's code declares none."""


# Attributes of the sending software.
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"
SCOPE: Final = "otel_mlperf"
VERSION: Final = "0.1.0"
USER_AGENT: Final = f"{SCOPE}/{VERSION} OTel-OTLP-Exporter-Python/{VERSION}"
"""HTTP user agent, in the format that the specification of OTLP exporters requires."""
SDK: Final = {
    "telemetry.sdk.name": SCOPE,
    "telemetry.sdk.language": "python",
    "telemetry.sdk.version": VERSION,
}
"""Attributes of every resource."""

# Attributes of the resource: process, rank and run.
SERVICE_NAME: Final = "service.name"
SERVICE_INSTANCE_ID: Final = "service.instance.id"
HOST_NAME: Final = "host.name"
PROCESS_PID: Final = "process.pid"
OS_TYPE: Final = "os.type"
RUN_ID: Final = "ml.run.id"
RUN_NAME: Final = "ml.run.name"
RANK: Final = "ml.distributed.rank"
LOCAL_RANK: Final = "ml.distributed.local_rank"
WORLD_SIZE: Final = "ml.distributed.world_size"
RESTART: Final = "ml.distributed.restart_count"

# Attributes of spans.
ML_PHASE: Final = "ml.phase"
SECTION_NAME: Final = "ml.section.name"
SECTION_CATEGORY: Final = "ml.section.category"
TRAINING_EPOCH: Final = "ml.training.epoch"
EPOCH_MEMORY_PEAK: Final = "ml.training.epoch.memory.peak"
"""For an epoch: peak resident memory of the process from the run's start to the epoch's end."""
EPOCH_CUDA_PEAK: Final = "ml.training.epoch.cuda.peak"
"""For an epoch: peak memory allocated by PyTorch's allocator on one device."""
EPOCH_CUDA_RESERVED: Final = "ml.training.epoch.cuda.reserved"
"""For an epoch: peak memory reserved by PyTorch's allocator on one device, in use or not."""
TRAINING_STEP: Final = "ml.training.step"
MICRO_STEP: Final = "ml.training.micro_step"
BATCH_SIZE: Final = "ml.batch.size"
BATCH_TOKENS: Final = "ml.batch.tokens"
FINDING_ID: Final = "ml.finding.id"
FINDING_SEVERITY: Final = "ml.finding.severity"
FINDING_SUMMARY: Final = "ml.finding.summary"
FINDING_ACTION: Final = "ml.finding.action"
FINDING_VALUE: Final = "ml.finding.value"
FINDING_THRESHOLD: Final = "ml.finding.threshold"
REQUEST_ID: Final = "ml.request.id"
SECTION_BOUND: Final = "ml.section.bound"
"""For a section: maximum duration in seconds, as declared by the user's code."""
SECTION_PROFILER: Final = "ml.section.profiler"
"""For a profiled section: the profile's kind (``calls``, ``lines`` or ``memory``).

Profiling slows the section down."""
SECTION_PROFILED: Final = "ml.section.profiler.call"
"""For a profiled section: number of the profiled call, from 1."""
STEP_FLOPS: Final = "ml.training.step.flops"
"""For a step: floating point operations of its models."""
CHECKPOINT_SIZE: Final = "ml.checkpoint.size"
"""For a checkpoint: bytes written or read; absent if unknown."""
CHECKPOINT_RATE: Final = "ml.checkpoint.rate"
"""For a checkpoint: bytes per second (size / duration of the call)."""
CHECKPOINT_DIRECTION: Final = "ml.checkpoint.io.direction"
"""For a checkpoint: ``write`` or ``read``."""
CHECKPOINT_WRITE: Final = "write"
CHECKPOINT_READ: Final = "read"
THREAD_ID: Final = "thread.id"
THREAD_NAME: Final = "thread.name"
ERROR_TYPE: Final = "error.type"
SPAN_KIND: Final = "span.kind"
"""Kind of a span that is not internal: ``server``, ``client``, ``producer`` or ``consumer``."""
SCOPE_NAME: Final = "otel.scope.name"
SCOPE_VERSION: Final = "otel.scope.version"
SCOPE_SCHEMA_URL: Final = "otel.scope.schema_url"
SCOPE_FIELDS: Final = (SCOPE_NAME, SCOPE_VERSION, SCOPE_SCHEMA_URL)
STATUS_DESCRIPTION: Final = "otel.status_description"
"""Description of the error status of a span."""
DROPPED_ATTRIBUTES: Final = "otel.dropped_attributes_count"
"""Number of dropped attributes of a span, an event or a link."""
DROPPED_EVENTS: Final = "otel.dropped_events_count"
DROPPED_LINKS: Final = "otel.dropped_links_count"
TRACE_STATE: Final = "w3c.tracestate"
"""Tracestate of a remote caller's trace, unchanged."""
REMOTE_PARENT: Final = "otel_mlperf.parent.remote"
"""True if the parent of a span is in another process."""
UNSAMPLED: Final = "otel_mlperf.trace.unsampled"
"""True if the span belongs to a trace that its originator (a remote program) has not sampled."""
EXCEPTION_TYPE: Final = "exception.type"
EXCEPTION_MESSAGE: Final = "exception.message"
EXCEPTION_STACKTRACE: Final = "exception.stacktrace"
EXCEPTION: Final = (EXCEPTION_TYPE, EXCEPTION_MESSAGE, EXCEPTION_STACKTRACE)
BASE64: Final = "base64"
"""Only key of a mapping that represents bytes, because journals and tables cannot contain bytes."""
CODE_FUNCTION: Final = "code.function.name"
CODE_FILE: Final = "code.file.path"
CODE_LINE: Final = "code.line.number"
STACK_CALL: Final = "ml.stack.call"
"""For a sampled line: name of the called function, as in the line; empty if there is no call."""
STACK_PACKAGE: Final = "ml.stack.package"
"""For a sampled line: package of the called Python function; empty: a C function, or no call."""
STACK_WITHIN: Final = "ml.stack.within"
"""For a sampled line: its caller, ``loading`` (a DataLoader) or ``torch``; empty otherwise."""
RESULT: Final = "ml.result."
"""Prefix of all names passed to ``Run.result()``."""
KEPT: Final = "otel_mlperf.kept"
INTERRUPTED: Final = "otel_mlperf.interrupted"
INTERRUPTED_MESSAGE: Final = "the process ended while this section was open"
"""Status message of an interrupted span."""
STEP_OUTSIDE: Final = "otel_mlperf.step.outside"
"""For a step: nanoseconds within its span that do not count, such as a validation inside it."""
SEGMENT_OF: Final = "otel_mlperf.segment.of"
ROLLED_UP: Final = "otel_mlperf.rolled_up.count"
ROLLED_UP_SUM: Final = "otel_mlperf.rolled_up.sum"
ROLLED_UP_MIN: Final = "otel_mlperf.rolled_up.min"
ROLLED_UP_MAX: Final = "otel_mlperf.rolled_up.max"
OUTCOME: Final = "otel_mlperf.outcome"
SIGNAL: Final = "otel_mlperf.signal"
DESTINATION: Final = "otel_mlperf.destination"
OVERFLOW: Final = "otel.metric.overflow"

# Attributes of spans in a profiler window.
PROFILER_ACTIVITY: Final = "pytorch.profiler.activity"
"""Kind of the event in Kineto: ``cpu_op``, ``kernel``, ``gpu_memcpy``, …"""
PROFILER_PROBLEM: Final = "pytorch.profiler.problem"
"""Problem of the profiler window: no GPU was found, CUPTI was refused, records are missing, …"""
PROFILER_COMPLETENESS: Final = "pytorch.profiler.completeness"
"""For the span of a profiler window: recorded share of the least complete kind of record, from 0.0
to 1.0."""
CAPTURED_OPERATOR: Final = "pytorch.profiler.captured_operator"
"""For device work of a replayed graph: operator that launched this work during the capture."""
LAUNCH: Final = "pytorch.profiler.launch"
"""For device work: span id of the launching call, if the correlation id does not identify it."""
ASYNCHRONOUS: Final = "pytorch.profiler.asynchronous"
"""True if the span ran on a device, concurrently to the parent that launched it.

Such a span may end after its parent."""
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
"""Occupancy: share of a multiprocessor's maximum number of warps, as estimated by Kineto."""
MEMCPY_KIND: Final = "cuda.memcpy.kind"
MEMCPY_SIZE: Final = "cuda.memcpy.size"
"""Size of a copy or memset in bytes."""
COLLECTIVE_OPERATION: Final = "ml.collective.operation"
COLLECTIVE_BACKEND: Final = "ml.collective.backend"
COLLECTIVE_GROUP: Final = "ml.collective.process_group.name"
COLLECTIVE_GROUP_SIZE: Final = "ml.collective.process_group.size"
COLLECTIVE_SIZE: Final = "ml.collective.message.size"
COLLECTIVE_TYPE: Final = "ml.collective.element.type"
COLLECTIVE_SEQUENCE: Final = "ml.collective.sequence_number"
COLLECTIVE_ALGORITHM: Final = "ml.collective.algorithm"
COLLECTIVE_BUS_BANDWIDTH: Final = "ml.collective.bus_bandwidth"
"""Bytes per second on the busiest link: message size x factor of NCCL's tests / duration."""

# Attributes of readings of host and process.
CPU_MODE: Final = "cpu.mode"
CPU_NUMBER: Final = "cpu.logical_number"
MEMORY_STATE: Final = "system.memory.state"
PAGING_STATE: Final = "system.paging.state"
PAGING_DIRECTION: Final = "system.paging.direction"
PAGING_FAULT: Final = "system.paging.fault.type"
SYSTEM_DEVICE: Final = "system.device"
DISK_DIRECTION: Final = "disk.io.direction"
NETWORK_INTERFACE: Final = "network.interface.name"
NETWORK_DIRECTION: Final = "network.io.direction"
FILESYSTEM_STATE: Final = "system.filesystem.state"
MOUNTPOINT: Final = "system.filesystem.mountpoint"
CONTEXT_SWITCH: Final = "process.context_switch.type"
PROCESS_ROLE: Final = "ml.process.role"
"""``main``: the training process; ``worker`` and ``other``: sums over its child processes.

``ended`` (only for CPU time): time of ended children that no reading contains.
"""
PSI_RESOURCE: Final = "linux.psi.resource"
PSI_KIND: Final = "linux.psi.kind"
"""``some``: at least one task waited; ``full``: all tasks waited at the same time."""

# Attributes of readings of hardware.
HW_ID: Final = "hw.id"
"""Unique id of a hardware component; for a GPU its UUID, as in the label ``UUID`` of DCGM."""
HW_SENSOR_LOCATION: Final = "hw.sensor_location"
HW_NAME: Final = "hw.name"
"""Name with the GPU's index in PCI bus order, such as ``gpu0``; ``gpu0.mig1`` for an instance."""
HW_MODEL: Final = "hw.model"
HW_PARENT: Final = "hw.parent"
"""For a MIG instance: ``hw.id`` of its GPU. Sums over GPUs must exclude devices with a parent."""
HW_TYPE: Final = "hw.type"
HW_GPU_TASK: Final = "hw.gpu.task"
TASK_GENERAL: Final = "general"
"""Task for compute and graphics; the other tasks are ``encoder`` and ``decoder``."""
HW_LIMIT_TYPE: Final = "hw.limit_type"
ACCELERATOR_LINK: Final = "ml.accelerator.link.type"
"""``pcie`` or ``nvlink``."""
CLOCK_DOMAIN: Final = "ml.accelerator.clock.domain"
"""``sm`` or ``memory``."""
THROTTLE_REASON: Final = "ml.accelerator.throttle.reason"
REPAIR_TYPE: Final = "ml.accelerator.memory.repair.type"
"""``rows`` (replaced by spare rows) or ``pages`` (retired)."""
SAMPLER: Final = "otel_mlperf.sampler.name"

# Attributes of data that the training process itself reports.
GC_GENERATION: Final = "cpython.gc.generation"
COMPILE_ID: Final = "pytorch.compile.id"
"""For a compilation: TorchDynamo's frame number and number of earlier compilations, as ``0/1``."""
COMPILE_REASON: Final = "pytorch.compile.reason"
"""For a compilation: ``dynamo`` (a frame) or ``lazy_backward`` (a backward pass, at its first use).
"""
CUDA_MEMORY_STATE: Final = "pytorch.cuda.memory.state"
"""``allocated`` (by tensors) or ``reserved`` (by the allocator, including allocated memory)."""
CUDA_MEMORY_DELTA: Final = "pytorch.cuda.memory.section.delta"
"""For a section: allocated bytes at its end minus allocated bytes at its start."""
CUDA_MEMORY_PEAK: Final = "pytorch.cuda.memory.section.peak"
"""For a section: peak of allocated bytes within the section; absent if torch cannot determine it.
"""
CUDA_MEMORY_SNAPSHOT: Final = "pytorch.cuda.memory.snapshot"
"""For a section that ran out of GPU memory: allocator snapshot file in the run folder."""
