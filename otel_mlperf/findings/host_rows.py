"""Rows of the findings table about hosts, limits of jobs, and threads that wait for CPUs."""

from __future__ import annotations

from typing import Final

from otel_mlperf import names
from otel_mlperf.findings.finding_row import MINUTE_S, Alert, FindingRow, MeasuredSeries, Rule

CONTENTION_ROWS: Final[tuple[FindingRow, ...]] = (
    FindingRow(
        id="oversubscription",
        name="Oversubscription",
        severity="warning",
        threshold=0.1,
        summary=(
            "{runnable:.1f} threads of the run compete for {cpus:g} CPUs, and its main thread waits"
            " for a CPU {value:.0%} of the time"
        ),
        action=(
            "The run likely has too many threads: set OMP_NUM_THREADS={threads} (or "
            "torch.set_num_threads({threads})) in the training process."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="noisy_neighbour",
        name="NoisyNeighbour",
        severity="warning",
        threshold=0.1,
        summary=(
            "other programs use {others:.1f} of the {host:g} CPUs of the host, and the main thread "
            "waits for a CPU {value:.0%} of the time"
        ),
        action=(
            "Find the other programs (top, ps -eo pcpu,args --sort=-pcpu), stop or move them, or "
            "give this run its own CPUs (taskset, an exclusive node, a CPU quota for the others)."
        ),
        of_ended=True,
    ),
)


HOST_ROWS: Final[tuple[FindingRow, ...]] = (
    Rule(
        id="memory_near_limit",
        name="MemoryNearLimit",
        severity="critical",
        threshold=0.9,
        summary="the job uses {value:.0%} of its memory limit",
        action=(
            "Use fewer DataLoader workers or a smaller prefetch_factor, or request more memory: at "
            "the limit the kernel kills a process. Check for memory that grows from epoch to epoch."
        ),
        of_ended=True,
        measured=MeasuredSeries(metric=names.CGROUP_WORKING_SET),
        per=MeasuredSeries(metric=names.CGROUP_MEMORY_LIMIT),
        for_s=10,
        alert=Alert(
            labels=(
                names.HOST_NAME,
                names.RANK,
            ),
            summary=(
                "Rank {{ $labels.ml_distributed_rank }} of run {{ $labels.ml_run_name "
                "}} is near its memory limit."
            ),
            description=(
                "Its container or job uses {{ $value | humanizePercentage }} of its memory limit. "
                "At the limit the kernel kills one of its processes."
            ),
            dashboard="otel-mlperf-host",
            after="2m",
        ),
    ),
    Rule(
        id="host_memory_near_limit",
        name="HostMemoryNearLimit",
        severity="critical",
        threshold=0.05,
        comparison="below",
        summary="only {value:.0%} of the host's memory is available",
        action=(
            "Find what uses it, including other programs and files under /dev/shm: the host "
            "swaps or kills processes next."
        ),
        of_ended=True,
        measured=MeasuredSeries(metric=names.SYSTEM_MEMORY_AVAILABLE),
        per=MeasuredSeries(metric=names.SYSTEM_MEMORY_LIMIT),
        for_s=10,
        alert=Alert(
            labels=(names.HOST_NAME,),
            summary="Host {{ $labels.host_name }} is nearly out of memory.",
            description=(
                "Only {{ $value | humanizePercentage }} of its memory is available: it "
                "swaps, or kills processes next, those of run {{ $labels.ml_run_name }} "
                "among them."
            ),
            dashboard="otel-mlperf-host",
            after="2m",
        ),
    ),
    Rule(
        id="killed_for_memory",
        name="ProcessKilledForMemory",
        severity="critical",
        threshold=0,
        summary="the kernel killed a process of the job because memory ran out",
        action=(
            "Losing a DataLoader worker ends the training: use fewer workers, a smaller "
            "prefetch_factor, or request more memory."
        ),
        of_ended=True,
        measured=MeasuredSeries(metric=names.CGROUP_OOM_KILLS),
        over_s=5 * MINUTE_S,
        alert=Alert(
            labels=(
                names.HOST_NAME,
                names.RANK,
            ),
            summary="The kernel has killed a process of run {{ $labels.ml_run_name }}.",
            description=(
                "About {{ $value | humanize }} in the last 15 minutes in the control "
                "group of rank {{ $labels.ml_distributed_rank }} on {{ "
                "$labels.host_name }}, for want of memory."
            ),
            dashboard="otel-mlperf-host",
        ),
    ),
    Rule(
        id="cpu_throttled",
        name="CpuThrottled",
        severity="warning",
        threshold=0.25,
        summary="the CPU quota was exhausted in {value:.0%} of its periods",
        action=(
            "Request more CPUs, or use fewer DataLoader workers and threads "
            "(OMP_NUM_THREADS) than the quota has CPUs."
        ),
        of_ended=True,
        measured=MeasuredSeries(metric=names.CGROUP_THROTTLED_PERIODS),
        per=MeasuredSeries(metric=names.CGROUP_PERIODS),
        over_s=MINUTE_S,
        alert=Alert(
            labels=(
                names.HOST_NAME,
                names.RANK,
            ),
            summary=(
                "Rank {{ $labels.ml_distributed_rank }} of run {{ $labels.ml_run_name "
                "}} is throttled."
            ),
            description=(
                "Its CPU quota was exhausted in {{ $value | humanizePercentage }} of the quota's "
                "periods."
            ),
            dashboard="otel-mlperf-host",
            after="5m",
        ),
    ),
    Rule(
        id="disk_full",
        name="DiskFull",
        severity="warning",
        threshold=0.95,
        summary="the disk of the run folder ({system_filesystem_mountpoint}) is {value:.0%} full",
        action=(
            "Remove old checkpoints and run folders, or write to another disk: nothing can be "
            "written to a full one."
        ),
        of_ended=True,
        measured=MeasuredSeries(metric=names.FILESYSTEM_UTILIZATION),
        by=(names.MOUNTPOINT,),
        alert=Alert(
            labels=(names.HOST_NAME,),
            summary=(
                "The disk of run {{ $labels.ml_run_name }} on {{ $labels.host_name }} "
                "is nearly full."
            ),
            description=(
                "{{ $value | humanizePercentage }} of {{ "
                "$labels.system_filesystem_mountpoint }} is in use: the next checkpoint "
                "may not fit, and telemetry is lost there."
            ),
            dashboard="otel-mlperf-host",
            after="5m",
        ),
    ),
)
