"""Sources of metrics, and the lowest level of readings at which each metric is emitted.

Metrics that are not listed here describe the run itself (steps, sections, profiler windows) or the
health of the package, and are emitted at every level.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf.names import device, health, runtime
from otel_mlperf.names import host_and_process as host

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_mlperf.names.metric import Metric

SOURCES: Final[Mapping[str, Mapping[str, tuple[Metric, ...]]]] = {
    "host": {
        "basic": (
            host.SYSTEM_CPU_TIME,
            host.SYSTEM_CPU_UTILIZATION,
            host.SYSTEM_CPU_COUNT,
            host.SYSTEM_MEMORY,
            host.SYSTEM_MEMORY_LIMIT,
            host.SYSTEM_MEMORY_AVAILABLE,
            host.SYSTEM_MEMORY_UTILIZATION,
            host.DISK_IO,
            host.DISK_IO_TIME,
            host.NETWORK_IO,
            host.PSI_TIME,
            host.PSI_AVERAGE,
            host.LOAD_1M,
        ),
        "detailed": (
            host.SYSTEM_CPU_FREQUENCY,
            host.SYSTEM_MEMORY_SHARED,
            host.PAGING_USAGE,
            host.PAGING_UTILIZATION,
            host.PAGING_FAULTS,
            host.PAGING_OPERATIONS,
            host.DISK_OPERATIONS,
            host.NETWORK_PACKETS,
            host.NETWORK_DROPPED,
            host.NETWORK_ERRORS,
            host.LOAD_5M,
            host.LOAD_15M,
            host.SYSTEM_UPTIME,
            device.HW_TEMPERATURE,  # of CPUs
        ),
        "comprehensive": (host.SYSTEM_CPU_TIME,),  # of each CPU
    },
    "process": {
        "basic": (
            host.PROCESS_CPU_TIME,
            host.PROCESS_CPU_UTILIZATION,
            host.PROCESS_MEMORY,
            host.PROCESS_MEMORY_UTILIZATION,
            host.PROCESS_THREADS,
            host.PROCESS_COUNT,
            host.PROCESS_RUN_DELAY,
            host.MAIN_THREAD_CPU_TIME,
            host.MAIN_THREAD_RUN_DELAY,
            host.PROCESS_WRITE_CALLS,
            host.PROCESS_UPTIME,
            host.CGROUP_CPU_LIMIT,
            host.CGROUP_CPU_TIME,
            host.CGROUP_PERIODS,
            host.CGROUP_THROTTLED_PERIODS,
            host.CGROUP_THROTTLED_TIME,
            host.CGROUP_MEMORY_LIMIT,
            host.CGROUP_MEMORY,
            host.CGROUP_WORKING_SET,
            host.CGROUP_OOM_KILLS,
        ),
        "detailed": (
            host.PROCESS_MEMORY_VIRTUAL,
            host.PROCESS_FAULTS,
            host.PROCESS_DISK_IO,
            host.PROCESS_FILES,
            host.PROCESS_CONTEXT_SWITCHES,
            host.CGROUP_MEMORY_PEAK,
        ),
        "comprehensive": (host.PROCESS_MEMORY_PSS,),
    },
    "gpu": {
        "basic": (
            device.GPU_UTILIZATION,
            device.MEMORY_BUSY,
            device.GPU_MEMORY_USAGE,
            device.GPU_MEMORY_LIMIT,
            device.GPU_MEMORY_UTILIZATION,
            device.MEMORY_RESERVED,
            device.HW_POWER,
            device.POWER_LIMIT,
            device.HW_ENERGY,
            device.HW_TEMPERATURE,
            device.TEMPERATURE_MARGIN,
            device.CLOCK,
            device.CLOCK_LIMIT,
            device.THROTTLE,
            device.HW_ERRORS,
            device.XID,
            device.DEVICE_LOST,
        ),
        "detailed": (
            device.GPU_UTILIZATION,  # of encoder and decoder
            device.HW_TEMPERATURE,  # of the memory
            device.HW_TEMPERATURE_LIMIT,
            device.THROTTLE_TIME,
            device.PERFORMANCE_STATE,
            device.PCIE_GENERATION,
            device.PCIE_GENERATION_LIMIT,
            device.PCIE_WIDTH,
            device.PCIE_WIDTH_LIMIT,
            device.NVLINK_ACTIVE,
            device.GPU_IO,
            device.PAGES_RETIRED,
            device.ROWS_REMAPPED,
            device.REPAIR_PENDING,
            device.REPAIR_FAILED,
            device.DEVICE_PROCESS_MEMORY,
        ),
        "comprehensive": (
            device.HW_ERRORS,  # of PCIe and NVLink
            device.DEVICE_PROCESS_UTILIZATION,
        ),
    },
    "filesystem": {
        "basic": (host.FILESYSTEM_USAGE, host.FILESYSTEM_LIMIT, host.FILESYSTEM_UTILIZATION),
    },
    "gc": {
        "basic": (
            runtime.GC_COLLECTIONS,
            runtime.GC_COLLECTED,
            runtime.GC_UNCOLLECTABLE,
            runtime.GC_TIME,
        ),
    },
    "allocator": {
        "basic": (
            runtime.CUDA_MEMORY,
            runtime.CUDA_MEMORY_PEAK_USAGE,
            runtime.CUDA_MEMORY_SPLIT,
            runtime.CUDA_RETRIES,
            runtime.CUDA_OOMS,
            runtime.CUDA_DEVICE_ALLOCATIONS,
            runtime.MPS_MEMORY,
            runtime.MPS_DRIVER_MEMORY,
        ),
    },
    "stacks": {
        "basic": (runtime.STACK_SAMPLES, runtime.STACK_SAMPLES_BETWEEN),
        "detailed": (runtime.STACK_SAMPLES_SET_UP,),
    },
    "agent": {
        "basic": (
            health.AGENT_CPU_TIME,
            health.AGENT_MEMORY,
            health.JOURNAL_USAGE,
            health.JOURNAL_LIMIT,
            health.SAMPLER_DURATION,
            health.SAMPLER_LATE,
        ),
    },
}
"""Metrics that each level adds, by source and level.

If a metric has two levels, the higher level adds series to the metric. The sources are those of the
setting ``disabled_readings``, and ``agent``, which is disabled only by level ``none``.
"""


def levels_of(metric: Metric) -> dict[str, list[str]]:
    """Return, by source of ``metric``, the levels that add the metric or further series of it.

    The result is empty for metrics of the run itself.
    """
    found = {
        source: [level for level, metrics in levels.items() if metric in metrics]
        for source, levels in SOURCES.items()
    }
    return {source: levels for source, levels in found.items() if levels}
