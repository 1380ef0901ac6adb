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
COLLECTIVE_ALGORITHM: Final = "ml.collective.algorithm"
COLLECTIVE_BUS_BANDWIDTH: Final = "ml.collective.bus_bandwidth"
"""Bytes a second on the busiest link: message size x the factor of NCCL's tests / duration."""

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
"""``main``: the training process; ``worker``, ``other``: its children, summed."""
PSI_RESOURCE: Final = "linux.psi.resource"
PSI_KIND: Final = "linux.psi.kind"
"""``some``: at least one task waited; ``full``: all of them did at once."""

# Attributes of hardware.
HW_ID: Final = "hw.id"
"""What tells one piece of hardware from all others: of a GPU its UUID."""
HW_SENSOR_LOCATION: Final = "hw.sensor_location"


# Attributes of a GPU's readings, whose hw.id is its UUID, as in DCGM's label of that name.
HW_NAME: Final = "hw.name"
"""``gpu0``: its number in the order of the PCI bus; ``gpu0.mig1`` of an instance on it."""
HW_MODEL: Final = "hw.model"
HW_PARENT: Final = "hw.parent"
"""Of a MIG instance: ``hw.id`` of its GPU. Sums over GPUs leave out what has a parent."""
HW_TYPE: Final = "hw.type"
HW_GPU_TASK: Final = "hw.gpu.task"
HW_LIMIT_TYPE: Final = "hw.limit_type"
ACCELERATOR_LINK: Final = "ml.accelerator.link.type"
"""``pcie`` or ``nvlink``."""
CLOCK_DOMAIN: Final = "ml.accelerator.clock.domain"
"""``sm`` or ``memory``."""
THROTTLE_REASON: Final = "ml.accelerator.throttle.reason"
REPAIR_TYPE: Final = "ml.accelerator.memory.repair.type"
"""``rows`` are replaced by spare ones, ``pages`` are taken out of use."""
SAMPLER: Final = "otel_mlperf.sampler.name"

# Attributes of what the training process says of itself.
GC_GENERATION: Final = "cpython.gc.generation"
CUDA_MEMORY_STATE: Final = "pytorch.cuda.memory.state"
"""``allocated`` to tensors; ``reserved`` by the allocator, which holds the allocated."""
CUDA_MEMORY_DELTA: Final = "pytorch.cuda.memory.section.delta"
"""Of a section: memory allocated at its end - at its begin, bytes."""
CUDA_MEMORY_PEAK: Final = "pytorch.cuda.memory.section.peak"
"""Of a section: the most that was allocated in it, bytes; absent where torch does not know."""
CUDA_MEMORY_SNAPSHOT: Final = "pytorch.cuda.memory.snapshot"
"""Of a section that ran out of GPU memory: the file in the run folder that shows the allocator."""


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


_UNIT_WORDS: Final = {
    "s": "seconds",
    "By": "bytes",
    "W": "watts",
    "Hz": "hertz",
    "J": "joules",
    "Cel": "celsius",
}

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
# Readings of the host: no process of the run in particular.
SYSTEM_CPU_TIME: Final = Metric(
    "system.cpu.time",
    "s",
    "counter",
    "Time of all logical CPUs in each mode; of each of them where there is a number.",
    (CPU_MODE, CPU_NUMBER),
)
SYSTEM_CPU_UTILIZATION: Final = Metric(
    "system.cpu.utilization",
    "1",
    "gauge",
    "Share of the CPU time since the reading before; over the modes they add up to one.",
    (CPU_MODE,),
)
SYSTEM_CPU_FREQUENCY: Final = Metric(
    "system.cpu.frequency", "Hz", "gauge", "Frequency of the logical CPUs now, their mean."
)
SYSTEM_CPU_COUNT: Final = Metric(
    "system.cpu.logical.count", "{cpu}", "updowncounter", "Logical CPUs that are online."
)
LOAD_1M: Final = Metric(
    "linux.load_average.1m",
    "{thread}",
    "gauge",
    "Threads that run or wait for a CPU or a disk, mean of the last minute.",
)
LOAD_5M: Final = Metric(
    "linux.load_average.5m", "{thread}", "gauge", "The same over the last five minutes."
)
LOAD_15M: Final = Metric(
    "linux.load_average.15m", "{thread}", "gauge", "The same over the last fifteen minutes."
)
SYSTEM_MEMORY: Final = Metric(
    "system.memory.usage",
    "By",
    "updowncounter",
    "Memory of the host by state: used, free, buffers, cached (with reclaimable slabs).",
    (MEMORY_STATE,),
)
SYSTEM_MEMORY_LIMIT: Final = Metric(
    "system.memory.limit",
    "By",
    "updowncounter",
    "Memory of the host, whatever a container may use.",
)
SYSTEM_MEMORY_UTILIZATION: Final = Metric(
    "system.memory.utilization",
    "1",
    "gauge",
    "Share of the host's memory in the state ``used``.",
    (MEMORY_STATE,),
)
SYSTEM_MEMORY_AVAILABLE: Final = Metric(
    "system.memory.linux.available",
    "By",
    "updowncounter",
    "Memory that programs can still get without swapping, as the kernel estimates it.",
)
SYSTEM_MEMORY_SHARED: Final = Metric(
    "system.memory.linux.shared",
    "By",
    "updowncounter",
    "Shared memory and tmpfs: batches on their way from DataLoader workers lie here.",
)
PAGING_USAGE: Final = Metric(
    "system.paging.usage", "By", "updowncounter", "Swap by state: used, free.", (PAGING_STATE,)
)
PAGING_UTILIZATION: Final = Metric(
    "system.paging.utilization", "1", "gauge", "Share of the swap in use.", (PAGING_STATE,)
)
PAGING_FAULTS: Final = Metric(
    "system.paging.faults",
    "{fault}",
    "counter",
    "Page faults; a major one waited for a disk.",
    (PAGING_FAULT,),
)
PAGING_OPERATIONS: Final = Metric(
    "system.paging.operations",
    "{operation}",
    "counter",
    "Pages swapped in and out.",
    (PAGING_DIRECTION,),
)
DISK_IO: Final = Metric(
    "system.disk.io",
    "By",
    "counter",
    "Bytes read from and written to each real disk.",
    (SYSTEM_DEVICE, DISK_DIRECTION),
)
DISK_OPERATIONS: Final = Metric(
    "system.disk.operations",
    "{operation}",
    "counter",
    "Reads and writes of each real disk that are complete.",
    (SYSTEM_DEVICE, DISK_DIRECTION),
)
DISK_IO_TIME: Final = Metric(
    "system.disk.io_time",
    "s",
    "counter",
    "Time in which the disk had anything to do.",
    (SYSTEM_DEVICE,),
)
NETWORK_IO: Final = Metric(
    "system.network.io",
    "By",
    "counter",
    "Bytes received and transmitted by each interface, loopback left out.",
    (NETWORK_INTERFACE, NETWORK_DIRECTION),
)
NETWORK_PACKETS: Final = Metric(
    "system.network.packet.count",
    "{packet}",
    "counter",
    "Packets received and transmitted.",
    (NETWORK_INTERFACE, NETWORK_DIRECTION),
)
NETWORK_DROPPED: Final = Metric(
    "system.network.packet.dropped",
    "{packet}",
    "counter",
    "Packets dropped although nothing was wrong with them: a full queue, mostly.",
    (NETWORK_INTERFACE, NETWORK_DIRECTION),
)
NETWORK_ERRORS: Final = Metric(
    "system.network.errors",
    "{error}",
    "counter",
    "Errors in receiving and transmitting.",
    (NETWORK_INTERFACE, NETWORK_DIRECTION),
)
FILESYSTEM_USAGE: Final = Metric(
    "system.filesystem.usage",
    "By",
    "updowncounter",
    "Space of the disk that holds the run folder by state: used, free, reserved (for root).",
    (MOUNTPOINT, FILESYSTEM_STATE),
)
FILESYSTEM_LIMIT: Final = Metric(
    "system.filesystem.limit",
    "By",
    "updowncounter",
    "Size of the disk that holds the run folder.",
    (MOUNTPOINT,),
)
FILESYSTEM_UTILIZATION: Final = Metric(
    "system.filesystem.utilization",
    "1",
    "gauge",
    "Share of that disk in use, as ``df`` says it: used / (used + free).",
    (MOUNTPOINT,),
)
SYSTEM_UPTIME: Final = Metric("system.uptime", "s", "gauge", "Time since the host was started.")
PSI_TIME: Final = Metric(
    "linux.psi.stall.time",
    "s",
    "counter",
    "Time in which tasks of the host waited for the resource: cpu, memory, io.",
    (PSI_RESOURCE, PSI_KIND),
)
PSI_AVERAGE: Final = Metric(
    "linux.psi.stall.average",
    "1",
    "gauge",
    "Share of the last ten seconds in which they did.",
    (PSI_RESOURCE, PSI_KIND),
)

# Readings of the processes of the run.
PROCESS_CPU_TIME: Final = Metric(
    "process.cpu.time",
    "s",
    "counter",
    "CPU time; children that ended count with what they had used when last read.",
    (CPU_MODE, PROCESS_ROLE),
)
PROCESS_CPU_UTILIZATION: Final = Metric(
    "process.cpu.utilization",
    "1",
    "gauge",
    "CPU time since the reading before / (elapsed time x CPUs that the process may use).",
    (PROCESS_ROLE,),
)
PROCESS_MEMORY: Final = Metric(
    "process.memory.usage",
    "By",
    "updowncounter",
    "Resident memory; pages that processes share count in each of them.",
    (PROCESS_ROLE,),
)
PROCESS_MEMORY_VIRTUAL: Final = Metric(
    "process.memory.virtual", "By", "updowncounter", "Virtual memory.", (PROCESS_ROLE,)
)
PROCESS_MEMORY_UTILIZATION: Final = Metric(
    "process.memory.utilization",
    "1",
    "gauge",
    "Resident memory as a share of the host's.",
    (PROCESS_ROLE,),
)
PROCESS_MEMORY_PSS: Final = Metric(
    "ml.process.memory.pss",
    "By",
    "updowncounter",
    "Proportional set size: pages that n processes share count 1/n in each, so sums are right.",
    (PROCESS_ROLE,),
)
PROCESS_COUNT: Final = Metric(
    "ml.process.count",
    "{process}",
    "updowncounter",
    "Children of the training process that are alive.",
    (PROCESS_ROLE,),
)
PROCESS_DISK_IO: Final = Metric(
    "process.disk.io",
    "By",
    "counter",
    "Bytes that it caused to be read from and written to disks; the page cache is no disk.",
    (DISK_DIRECTION, PROCESS_ROLE),
)
PROCESS_THREADS: Final = Metric(
    "process.thread.count", "{thread}", "updowncounter", "Threads.", (PROCESS_ROLE,)
)
PROCESS_FILES: Final = Metric(
    "process.unix.file_descriptor.count",
    "{file_descriptor}",
    "updowncounter",
    "Open file descriptors.",
    (PROCESS_ROLE,),
)
PROCESS_CONTEXT_SWITCHES: Final = Metric(
    "process.context_switches",
    "{context_switch}",
    "counter",
    "Switches of all threads; an involuntary one had work left: something else took the CPU.",
    (CONTEXT_SWITCH, PROCESS_ROLE),
)
PROCESS_FAULTS: Final = Metric(
    "process.paging.faults",
    "{fault}",
    "counter",
    "Page faults; a major one waited for a disk.",
    (PAGING_FAULT, PROCESS_ROLE),
)
PROCESS_UPTIME: Final = Metric(
    "process.uptime", "s", "gauge", "Time since the training process was started."
)

# Readings of the control group that the training process is in: its container or job.
CGROUP_CPU_LIMIT: Final = Metric(
    "linux.cgroup.cpu.limit",
    "{cpu}",
    "updowncounter",
    "CPUs that the process may use: the fewest of its affinity and the quotas above it.",
)
CGROUP_CPU_TIME: Final = Metric(
    "linux.cgroup.cpu.time",
    "s",
    "counter",
    "CPU time of everything in the control group whose quota is tightest.",
)
CGROUP_PERIODS: Final = Metric(
    "linux.cgroup.cpu.periods",
    "{period}",
    "counter",
    "Periods of the quota in which the group wanted to run.",
)
CGROUP_THROTTLED_PERIODS: Final = Metric(
    "linux.cgroup.cpu.throttled.periods",
    "{period}",
    "counter",
    "Those of them in which the quota was used up.",
)
CGROUP_THROTTLED_TIME: Final = Metric(
    "linux.cgroup.cpu.throttled.time",
    "s",
    "counter",
    "Time for which the group was kept from running, summed over CPUs.",
)
CGROUP_MEMORY_LIMIT: Final = Metric(
    "linux.cgroup.memory.limit",
    "By",
    "updowncounter",
    "Memory that the process may use: the least of the host's and the limits above it.",
)
CGROUP_MEMORY: Final = Metric(
    "linux.cgroup.memory.usage",
    "By",
    "updowncounter",
    "Memory of the group whose limit is lowest, page cache included.",
)
CGROUP_WORKING_SET: Final = Metric(
    "linux.cgroup.memory.working_set",
    "By",
    "updowncounter",
    "The same without file pages that lie idle: what counts against the limit in earnest.",
)
CGROUP_MEMORY_PEAK: Final = Metric(
    "linux.cgroup.memory.peak", "By", "gauge", "The most that the group has used so far."
)
CGROUP_OOM_KILLS: Final = Metric(
    "linux.cgroup.memory.oom_kills",
    "{kill}",
    "counter",
    "Processes of the group that were killed for want of memory.",
)

# Said by the training process of itself, through its journal.
GC_COLLECTIONS: Final = Metric(
    "cpython.gc.collections",
    "{collection}",
    "counter",
    "Garbage collections of the training process, by generation.",
    (GC_GENERATION,),
)
GC_COLLECTED: Final = Metric(
    "cpython.gc.collected_objects",
    "{object}",
    "counter",
    "Objects that they have freed.",
    (GC_GENERATION,),
)
GC_UNCOLLECTABLE: Final = Metric(
    "cpython.gc.uncollectable_objects",
    "{object}",
    "counter",
    "Objects that they have found to be garbage and could not free.",
    (GC_GENERATION,),
)
GC_TIME: Final = Metric(
    "ml.process.gc.time",
    "s",
    "counter",
    "Time for which the program stood still for them.",
    (GC_GENERATION,),
)
CUDA_MEMORY: Final = Metric(
    "pytorch.cuda.memory.usage",
    "By",
    "updowncounter",
    "Memory of PyTorch's allocator at the begin of a step: allocated, reserved.",
    (DEVICE_INDEX, HW_ID, CUDA_MEMORY_STATE),
)
CUDA_MEMORY_MOST: Final = Metric(
    "pytorch.cuda.memory.peak",
    "By",
    "gauge",
    "The most since the process began, or since the program reset torch's peak.",
    (DEVICE_INDEX, HW_ID, CUDA_MEMORY_STATE),
)
CUDA_MEMORY_SPLIT: Final = Metric(
    "pytorch.cuda.memory.inactive_split",
    "By",
    "updowncounter",
    "Free parts of blocks whose other parts are in use: what fragmentation holds back.",
    (DEVICE_INDEX, HW_ID),
)
CUDA_RETRIES: Final = Metric(
    "pytorch.cuda.memory.retries",
    "{retry}",
    "counter",
    "Allocations that failed until the allocator had given back its cached memory.",
    (DEVICE_INDEX, HW_ID),
)
CUDA_OOMS: Final = Metric(
    "pytorch.cuda.memory.ooms",
    "{error}",
    "counter",
    "Allocations that failed: out of memory.",
    (DEVICE_INDEX, HW_ID),
)

HW_TEMPERATURE: Final = Metric(
    "hw.temperature",
    "Cel",
    "gauge",
    "Temperature of a GPU, or of a CPU where the machine has a sensor.",
    (HW_ID, HW_NAME, HW_SENSOR_LOCATION),
)

# Our own health.
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
AGENT_CPU_TIME: Final = Metric(
    "otel_mlperf.agent.cpu.time",
    "s",
    "counter",
    "CPU time of the agent, with the conversions of profiler windows that have ended.",
    (CPU_MODE,),
)
AGENT_MEMORY: Final = Metric(
    "otel_mlperf.agent.memory.usage", "By", "updowncounter", "Resident memory of the agent."
)
JOURNAL_USAGE: Final = Metric(
    "otel_mlperf.journal.usage",
    "By",
    "gauge",
    "The most that the agent found unread in one of the rank's journals since the reading before.",
)
JOURNAL_LIMIT: Final = Metric(
    "otel_mlperf.journal.limit",
    "By",
    "updowncounter",
    "Size of that journal's ring: what finds it full is dropped, and counted.",
)
JOURNAL_LOST: Final = Metric(
    "otel_mlperf.journal.lost",
    "{item}",
    "counter",
    "What found no room beside the ring (names, cells, values, ...), and errors of the recorder.",
    (ERROR_TYPE,),
)
CONVERSIONS: Final = Metric(
    "otel_mlperf.conversions",
    "{window}",
    "counter",
    "Profiler windows by what became of them: delivered to the store, lost.",
    (OUTCOME,),
)
PROFILE_WINDOWS: Final = Metric(
    "otel_mlperf.profile.windows",
    "{window}",
    "counter",
    "Profiler windows whose trace was written.",
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
SKIPPED_NOT_REACHED: Final = Metric(
    "otel_mlperf.profile.skipped.not_reached",
    "{window}",
    "counter",
    "Windows left out because run or block ended before they had recorded a step.",
)
DOCTOR_CHECK: Final = Metric(
    "otel_mlperf.doctor.check", "", "gauge", "Sent by ``otel-mlperf doctor`` to be found again."
)

# Devices.
GPU_UTILIZATION: Final = Metric(
    "hw.gpu.utilization",
    "1",
    "gauge",
    "Share of the time in which a kernel, the encoder or the decoder ran.",
    (HW_ID, HW_NAME, HW_GPU_TASK),
)
GPU_MEMORY_USAGE: Final = Metric(
    "hw.gpu.memory.usage",
    "By",
    "updowncounter",
    "Memory in use, without what the driver reserves.",
    (HW_ID, HW_NAME, HW_PARENT),
)
GPU_MEMORY_LIMIT: Final = Metric(
    "hw.gpu.memory.limit",
    "By",
    "updowncounter",
    "Memory that the device has.",
    (HW_ID, HW_NAME, HW_MODEL, HW_PARENT),
)
GPU_MEMORY_UTILIZATION: Final = Metric(
    "hw.gpu.memory.utilization",
    "1",
    "gauge",
    "Memory in use / memory that the device has.",
    (HW_ID, HW_NAME, HW_PARENT),
)
GPU_IO: Final = Metric(
    "hw.gpu.io",
    "By",
    "counter",
    "Bytes that the device sent and received.",
    (HW_ID, HW_NAME, NETWORK_DIRECTION, ACCELERATOR_LINK),
)
HW_ERRORS: Final = Metric(
    "hw.errors",
    "{error}",
    "counter",
    "Errors since the driver was loaded: ECC, PCIe replays, NVLink; xid since the agent began.",
    (HW_ID, HW_NAME, HW_TYPE, ERROR_TYPE),
)
HW_POWER: Final = Metric("hw.power", "W", "gauge", "Power drawn.", (HW_ID, HW_NAME, HW_TYPE))
HW_ENERGY: Final = Metric(
    "hw.energy",
    "J",
    "counter",
    "Energy used since the driver was loaded.",
    (HW_ID, HW_NAME, HW_TYPE),
)
HW_TEMPERATURE_LIMIT: Final = Metric(
    "hw.temperature.limit",
    "Cel",
    "gauge",
    "Where clocks are throttled, the device shuts down (critical), and the highest for long (max).",
    (HW_ID, HW_NAME, HW_SENSOR_LOCATION, HW_LIMIT_TYPE),
)
TEMPERATURE_MARGIN: Final = Metric(
    "ml.accelerator.temperature.margin",
    "Cel",
    "gauge",
    "Degrees left until the clocks are throttled.",
    (HW_ID, HW_NAME),
)
MEMORY_RESERVED: Final = Metric(
    "ml.accelerator.memory.reserved",
    "By",
    "updowncounter",
    "Memory that the driver and the firmware keep.",
    (HW_ID, HW_NAME),
)
MEMORY_BUSY: Final = Metric(
    "ml.accelerator.memory.busy",
    "1",
    "gauge",
    "Share of the time in which the memory was read or written.",
    (HW_ID, HW_NAME),
)
POWER_LIMIT: Final = Metric(
    "ml.accelerator.power.limit",
    "W",
    "gauge",
    "Power that the driver lets the device draw.",
    (HW_ID, HW_NAME),
)
CLOCK: Final = Metric(
    "ml.accelerator.clock.frequency", "Hz", "gauge", "Clock now.", (HW_ID, HW_NAME, CLOCK_DOMAIN)
)
CLOCK_LIMIT: Final = Metric(
    "ml.accelerator.clock.limit",
    "Hz",
    "gauge",
    "Highest clock of the device.",
    (HW_ID, HW_NAME, CLOCK_DOMAIN),
)
THROTTLE: Final = Metric(
    "ml.accelerator.throttle",
    "",
    "gauge",
    "1 while the clocks are held below their maximum for this reason, else 0.",
    (HW_ID, HW_NAME, THROTTLE_REASON),
)
THROTTLE_TIME: Final = Metric(
    "ml.accelerator.throttle.time",
    "s",
    "counter",
    "For how long the clocks were held below what was asked for, by policy.",
    (HW_ID, HW_NAME, THROTTLE_REASON),
)
PERFORMANCE_STATE: Final = Metric(
    "ml.accelerator.performance_state",
    "",
    "gauge",
    "P-state: 0 is the fastest, 15 the slowest.",
    (HW_ID, HW_NAME),
)
PCIE_GENERATION: Final = Metric(
    "ml.accelerator.pcie.generation",
    "",
    "gauge",
    "Generation that the PCIe link runs at; it falls while the device is idle.",
    (HW_ID, HW_NAME),
)
PCIE_GENERATION_LIMIT: Final = Metric(
    "ml.accelerator.pcie.generation.limit",
    "",
    "gauge",
    "Highest generation that device and slot have in common.",
    (HW_ID, HW_NAME),
)
PCIE_WIDTH: Final = Metric(
    "ml.accelerator.pcie.width",
    "{lane}",
    "gauge",
    "Lanes that the PCIe link uses.",
    (HW_ID, HW_NAME),
)
PCIE_WIDTH_LIMIT: Final = Metric(
    "ml.accelerator.pcie.width.limit",
    "{lane}",
    "gauge",
    "Lanes that device and slot have in common.",
    (HW_ID, HW_NAME),
)
NVLINK_ACTIVE: Final = Metric(
    "ml.accelerator.nvlink.active", "{link}", "gauge", "NVLinks that are up.", (HW_ID, HW_NAME)
)
XID: Final = Metric(
    "ml.accelerator.xid",
    "",
    "gauge",
    "Number of the XID error that came last, of those since the agent began.",
    (HW_ID, HW_NAME),
)
ROWS_REMAPPED: Final = Metric(
    "ml.accelerator.memory.remapped",
    "{row}",
    "gauge",
    "Rows of memory replaced by spare ones.",
    (HW_ID, HW_NAME, ERROR_TYPE),
)
PAGES_RETIRED: Final = Metric(
    "ml.accelerator.memory.retired",
    "{page}",
    "gauge",
    "Pages of memory taken out of use.",
    (HW_ID, HW_NAME, ERROR_TYPE),
)
REPAIR_PENDING: Final = Metric(
    "ml.accelerator.memory.repair.pending",
    "",
    "gauge",
    "1 while rows or pages wait for a reset of the device to be replaced, else 0.",
    (HW_ID, HW_NAME, REPAIR_TYPE),
)
REPAIR_FAILED: Final = Metric(
    "ml.accelerator.memory.repair.failed",
    "",
    "gauge",
    "1 when replacing a row failed: the device is due for exchange; else 0.",
    (HW_ID, HW_NAME),
)
DEVICE_PROCESS_MEMORY: Final = Metric(
    "ml.accelerator.process.memory.usage",
    "By",
    "updowncounter",
    "Memory of the device that the process uses.",
    (HW_ID, HW_NAME, HW_PARENT),
)
DEVICE_PROCESS_UTILIZATION: Final = Metric(
    "ml.accelerator.process.utilization",
    "1",
    "gauge",
    "Share of the time in which work of the process ran on the device.",
    (HW_ID, HW_NAME, HW_GPU_TASK),
)
DEVICE_LOST: Final = Metric(
    "ml.accelerator.lost",
    "{loss}",
    "counter",
    "Times that the device stopped answering: off the bus, in need of a reset, or timed out.",
    (HW_ID, HW_NAME),
)
SAMPLER_DURATION: Final = Metric(
    "otel_mlperf.sampler.duration",
    "s",
    "gauge",
    "Time that the last pass of a sampler took.",
    (SAMPLER,),
)
SAMPLER_LATE: Final = Metric(
    "otel_mlperf.sampler.late",
    "{pass}",
    "counter",
    "Passes that had no answer within their deadline.",
    (SAMPLER,),
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
