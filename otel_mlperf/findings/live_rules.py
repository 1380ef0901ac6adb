"""What is worth a warning, from when on, and what is to be done about it?

One table, as data: the agent evaluates it while a run goes on, and the alert rules of a server are
made from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from otel_mlperf import names

if TYPE_CHECKING:
    from otel_mlperf.names import Metric

MINUTE_S: Final = 60.0


class Part(NamedTuple):
    """A metric, or those of its series whose labels have one of the given values."""

    metric: Metric
    where: tuple[tuple[str, tuple[str, ...]], ...] = ()


class Rule(NamedTuple):
    """One condition: ``measured`` (divided by ``per``) is above or below the threshold."""

    name: str
    """In words run together, as alerts are called."""
    measured: Part
    comparison: Literal["above", "below"]
    threshold: float
    summary: str
    """What is the case, with ``{value}`` and labels such as ``{hw_name}`` filled in."""
    action: str
    """What to do about it."""
    per: Part | None = None
    by: tuple[str, ...] = ()
    """Labels of which each combination is judged for itself; over the others it is the sum."""
    for_s: float = 0.0
    """For how long it must hold."""
    over_s: float = 0.0
    """Not the values are compared, but what they have grown by over so long."""


_GPU: Final = (names.HW_ID, names.HW_NAME)
_SLOWING: Final = (
    "hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown",
)  # fmt: skip

RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "MemoryNearLimit",
        Part(names.CGROUP_WORKING_SET),
        "above",
        0.9,
        "{value:.0%} of the memory that the job may use is in use",
        "Use fewer DataLoader workers or a smaller prefetch_factor, or ask for more memory: at the "
        "limit the kernel kills a process.",
        per=Part(names.CGROUP_MEMORY_LIMIT),
        for_s=10,
    ),
    Rule(
        "HostMemoryNearLimit",
        Part(names.SYSTEM_MEMORY_AVAILABLE),
        "below",
        0.05,
        "only {value:.0%} of the host's memory is available",
        "Look for what uses it, also beside this run: the host swaps or kills processes next.",
        per=Part(names.SYSTEM_MEMORY_LIMIT),
        for_s=10,
    ),
    Rule(
        "ProcessKilledForMemory",
        Part(names.CGROUP_OOM_KILLS),
        "above",
        0,
        "the kernel has killed a process of the job for want of memory",
        "A DataLoader worker that is gone ends the training: use fewer, or ask for more memory.",
        over_s=5 * MINUTE_S,
    ),
    Rule(
        "CpuThrottled",
        Part(names.CGROUP_THROTTLED_PERIODS),
        "above",
        0.25,
        "the CPU quota was used up in {value:.0%} of its periods",
        "Ask for more CPUs, or use fewer DataLoader workers and threads than the quota has CPUs.",
        per=Part(names.CGROUP_PERIODS),
        over_s=MINUTE_S,
    ),
    Rule(
        "DiskFull",
        Part(names.FILESYSTEM_UTILIZATION),
        "above",
        0.95,
        "the disk of the run folder ({system_filesystem_mountpoint}) is {value:.0%} full",
        "Make room: checkpoints and the run folder cannot be written on a full disk.",
        by=(names.MOUNTPOINT,),
    ),
    Rule(
        "DataWait",
        Part(
            names.SECTION_SELF_TIME,
            ((names.SECTION_CATEGORY, (names.DATA_LOADING,)), (names.ML_PHASE, (names.TRAIN,))),
        ),
        "above",
        0.3,
        "training waits for data for {value:.0%} of its time",
        "Use more DataLoader workers, a larger prefetch_factor, pin_memory or faster storage.",
        per=Part(names.STEP_DURATION, ((names.ML_PHASE, (names.TRAIN,)),)),
        over_s=MINUTE_S,
    ),
    Rule(
        "GpuThrottled",
        Part(names.THROTTLE, ((names.THROTTLE_REASON, _SLOWING),)),
        "above",
        0,
        "{hw_name} runs below its clock: {ml_accelerator_throttle_reason}",
        "Look at cooling and power of the machine; a synchronous job is as fast as its slowest "
        "GPU.",
        by=(*_GPU, names.THROTTLE_REASON),
        for_s=10,
    ),
    Rule(
        "GpuHot",
        Part(names.TEMPERATURE_MARGIN),
        "below",
        3,
        "{hw_name} is {value:.0f} degrees below the temperature at which it slows down",
        "Look at the cooling of the machine.",
        by=_GPU,
        for_s=10,
    ),
    Rule(
        "GpuMemoryNearLimit",
        Part(names.GPU_MEMORY_USAGE),
        "above",
        0.97,
        "{value:.0%} of the memory of {hw_name} is in use",
        "The next peak may not fit: use a smaller batch, activation checkpointing, or see what "
        "else is on the GPU.",
        per=Part(names.GPU_MEMORY_LIMIT),
        by=_GPU,
        for_s=MINUTE_S,
    ),
    Rule(
        "GpuMemoryRetries",
        Part(names.CUDA_RETRIES),
        "above",
        0,
        "the CUDA allocator ran short {value:.0f} times and gave back its cache",
        "Each time costs a synchronisation: use a smaller batch, or set "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
        by=(names.DEVICE_INDEX,),
        over_s=5 * MINUTE_S,
    ),
    Rule(
        "GpuMemoryErrors",
        Part(names.HW_ERRORS, ((names.ERROR_TYPE, ("uncorrected",)),)),
        "above",
        0,
        "{hw_name} has had {value:.0f} memory errors that could not be corrected",
        "Take the node out of service: results may be wrong, and the driver kills what was hit.",
        by=_GPU,
        over_s=5 * MINUTE_S,
    ),
    Rule(
        "GpuXid",
        Part(names.HW_ERRORS, ((names.ERROR_TYPE, ("xid",)),)),
        "above",
        0,
        "the driver has reported {value:.0f} XID errors of {hw_name}",
        "Look the number up (dmesg, ml.accelerator.xid): some are the program's own, others mean "
        "that the GPU needs a reset or an exchange.",
        by=_GPU,
        over_s=5 * MINUTE_S,
    ),
    Rule(
        "GpuLost",
        Part(names.DEVICE_LOST),
        "above",
        0,
        "{hw_name} has stopped answering",
        "Look at dmesg; it takes a reset of the GPU or of the machine.",
        by=_GPU,
        over_s=5 * MINUTE_S,
    ),
    Rule(
        "TelemetryLost",
        Part(names.ITEMS, ((names.OUTCOME, ("lost",)),)),
        "above",
        0,
        "{value:.0f} spans or metric points were lost",
        "See `otel-mlperf summary` for the reason: the collector, the disk, or a full journal.",
        over_s=5 * MINUTE_S,
    ),
)
