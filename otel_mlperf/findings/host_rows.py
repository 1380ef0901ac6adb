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
            "on average {runnable:.1f} threads of the training compete for {cpus:g} CPUs, and "
            "the main thread waits for a CPU {value:.0%} of the time"
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
            "Find the other programs (top, ps -eo pcpu,args --sort=-pcpu), and stop or move "
            "them. Or reserve CPUs for this run (taskset, an exclusive node, a CPU quota for "
            "the other programs)."
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
            "Use fewer DataLoader workers or a smaller prefetch_factor, or request more memory: "
            "at the limit the kernel kills a process. Check whether memory grows from epoch to "
            "epoch."
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
                "The container or job of this rank uses {{ $value | humanizePercentage }} of "
                "its memory limit. At the limit the kernel kills a process of the job."
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
        summary="the host has only {value:.0%} of its memory available",
        action=(
            "Find what uses the memory, including other programs and files under /dev/shm. "
            "Otherwise the host will swap or kill processes."
        ),
        of_ended=True,
        measured=MeasuredSeries(metric=names.SYSTEM_MEMORY_AVAILABLE),
        per=MeasuredSeries(metric=names.SYSTEM_MEMORY_LIMIT),
        for_s=10,
        alert=Alert(
            labels=(names.HOST_NAME,),
            summary="Host {{ $labels.host_name }} is nearly out of memory.",
            description=(
                "Only {{ $value | humanizePercentage }} of the host's memory is available: the "
                "host will swap or kill processes, including those of run {{ "
                "$labels.ml_run_name }}."
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
            "Use fewer DataLoader workers or a smaller prefetch_factor, or request more memory: "
            "the loss of a worker ends the training."
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
                "The OOM killer ended about {{ $value | humanize }} processes in the control "
                "group of rank {{ $labels.ml_distributed_rank }} on {{ $labels.host_name }} in "
                "the last 15 minutes."
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
                "Rank {{ $labels.ml_distributed_rank }} of run {{ $labels.ml_run_name }} is "
                "throttled by its CPU quota."
            ),
            description=(
                "The CPU quota was exhausted in {{ $value | humanizePercentage }} of its "
                "periods in the last five minutes."
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
            "Remove old checkpoints and run folders, or write to another disk: writing to a "
            "full disk fails."
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
                "{{ $value | humanizePercentage }} of {{ $labels.system_filesystem_mountpoint "
                "}} is in use. The next checkpoint may not fit, and telemetry is lost once the "
                "disk is full."
            ),
            dashboard="otel-mlperf-host",
            after="5m",
        ),
    ),
)
