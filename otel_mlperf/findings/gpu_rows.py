"""Rows of the findings table about GPUs."""

from __future__ import annotations

from typing import Final

from otel_mlperf import names
from otel_mlperf.findings.finding_row import MINUTE_S, Alert, FindingRow, MeasuredSeries, Rule

_GPU: Final = (names.HW_ID, names.HW_NAME)
# Throttle reasons except idling and the power cap, which are normal.
_SLOWING: Final = (
    "hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown",
)  # fmt: skip

GPU_ROWS: Final[tuple[FindingRow, ...]] = (
    Rule(
        id="gpu_idle",
        name="GpuIdle",
        severity="warning",
        threshold=0.3,
        summary="the GPU idles for {value:.0%} of a step",
        action=(
            "Check what the host does between the sections that launch GPU work (data loading, "
            "copies, logging, .item()). Prefetch data, and move other work to another thread or "
            "to every N steps."
        ),
        of_ended=True,
        measured=MeasuredSeries(metric=names.STEP_GPU_IDLE),
        per=MeasuredSeries(metric=names.STEP_GPU),
        over_s=MINUTE_S,
        alert=Alert(
            summary="The GPUs of run {{ $labels.ml_run_name }} are idle during steps.",
            description=(
                "{{ $value | humanizePercentage }} of the GPU time of a step is outside the "
                "sections that launch GPU work."
            ),
            dashboard="otel-mlperf-training-run",
            after="10m",
        ),
    ),
    Rule(
        id="gpu_underused",
        name="GpuUnderused",
        severity="info",
        threshold=0.4,
        comparison="below",
        summary="{hw_name} is busy {value:.0%} of the time",
        action=(
            "Check what the steps wait for (data, the host, other ranks). Use a larger batch, more "
            "DataLoader workers, torch.compile, or fewer GPUs."
        ),
        measured=MeasuredSeries(
            metric=names.GPU_UTILIZATION, where=((names.HW_GPU_TASK, (names.TASK_GENERAL,)),)
        ),
        by=_GPU,
        for_s=MINUTE_S,
        alert=Alert(
            labels=(names.HOST_NAME,),
            over="10m",
            summary="{{ $labels.hw_name }} of {{ $labels.host_name }} is underused.",
            description=(
                "A kernel ran on this GPU for {{ $value | humanizePercentage }} of the last ten "
                "minutes. Set-up and validation on the CPU also trigger this alert."
            ),
            dashboard="otel-mlperf-gpus",
            after="10m",
        ),
    ),
    Rule(
        id="gpu_throttled",
        name="GpuThrottled",
        severity="warning",
        threshold=0,
        summary="{hw_name} is throttled: {ml_accelerator_throttle_reason}",
        action=(
            "Check the cooling and power supply of the machine: a synchronous job is only as "
            "fast as its slowest GPU. Move the job to another node until this node is repaired."
        ),
        of_ended=True,
        measured=MeasuredSeries(metric=names.THROTTLE, where=((names.THROTTLE_REASON, _SLOWING),)),
        by=(*_GPU, names.THROTTLE_REASON),
        for_s=10,
        alert=Alert(
            labels=(names.HOST_NAME,),
            over="5m",
            summary=(
                "{{ $labels.hw_name }} of {{ $labels.host_name }} is throttled: {{ "
                "$labels.ml_accelerator_throttle_reason }}."
            ),
            description=(
                "The clocks were throttled in {{ $value | humanizePercentage }} of the readings "
                "of the last five minutes. A synchronous job is only as fast as its slowest GPU."
            ),
            dashboard="otel-mlperf-gpus",
            after="5m",
            because="A power cap is normal at full load; idling is not throttling.",
            threshold=0.5,
        ),
    ),
    Rule(
        id="gpu_hot",
        name="GpuHot",
        severity="warning",
        threshold=3,
        comparison="below",
        summary="{hw_name} is {value:.0f} °C below the temperature at which its clocks are "
        "throttled",
        action="Check the cooling of the machine: fans, air flow, dust, hot neighbors.",
        of_ended=True,
        measured=MeasuredSeries(metric=names.TEMPERATURE_MARGIN),
        by=_GPU,
        for_s=10,
        alert=Alert(
            labels=(names.HOST_NAME,),
            summary=(
                "{{ $labels.hw_name }} of {{ $labels.host_name }} is close to thermal throttling."
            ),
            description=(
                "The GPU is {{ $value | humanize }} °C below the temperature at which its "
                "clocks are throttled."
            ),
            dashboard="otel-mlperf-gpus",
            after="5m",
        ),
    ),
    Rule(
        id="gpu_memory_near_limit",
        name="GpuMemoryNearLimit",
        severity="info",
        threshold=0.97,
        summary="{value:.0%} of the memory of {hw_name} is in use",
        action=(
            "Use a smaller batch or activation checkpointing, or check which other programs use "
            "the GPU: the next memory peak may not fit."
        ),
        of_ended=True,
        measured=MeasuredSeries(metric=names.GPU_MEMORY_USAGE),
        per=MeasuredSeries(metric=names.GPU_MEMORY_LIMIT),
        by=_GPU,
        for_s=MINUTE_S,
        alert=Alert(
            labels=(names.HOST_NAME,),
            summary="The memory of {{ $labels.hw_name }} of {{ $labels.host_name }} is nearly "
            "full.",
            description=(
                "{{ $value | humanizePercentage }} of the GPU's memory is in use. A longer "
                "sequence may end run {{ $labels.ml_run_name }} with an out-of-memory error."
            ),
            dashboard="otel-mlperf-gpus",
            after="5m",
        ),
    ),
    Rule(
        id="allocator_retries",
        name="GpuMemoryRetries",
        severity="info",
        threshold=0,
        summary="the CUDA allocator ran out of memory {value:.0f} times and released its cache",
        action=(
            "Use a smaller batch, or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: each "
            "retry synchronizes the device."
        ),
        of_ended=True,
        measured=MeasuredSeries(metric=names.CUDA_RETRIES),
        by=(names.DEVICE_INDEX,),
        over_s=5 * MINUTE_S,
        alert=Alert(
            labels=(names.RANK,),
            summary=(
                "Rank {{ $labels.ml_distributed_rank }} of run {{ $labels.ml_run_name }} is "
                "running out of GPU memory."
            ),
            description=(
                "The CUDA allocator ran out of memory about {{ $value | humanize }} times in "
                "the last 15 minutes. Each time, it released its cache, which synchronizes the "
                "device."
            ),
            dashboard="otel-mlperf-training-run",
        ),
    ),
    Rule(
        id="gpu_memory_errors",
        name="GpuMemoryErrors",
        severity="critical",
        threshold=0,
        summary="{hw_name} had {value:.0f} uncorrectable memory errors",
        action=(
            "Take the node out of service: results may be wrong, and the driver kills the affected "
            "processes. Continue on another node from a checkpoint that is older than the errors."
        ),
        of_ended=True,
        measured=MeasuredSeries(
            metric=names.HW_ERRORS, where=((names.ERROR_TYPE, ("uncorrected",)),)
        ),
        by=_GPU,
        over_s=5 * MINUTE_S,
        alert=Alert(
            labels=(names.HOST_NAME,),
            summary="{{ $labels.hw_name }} of {{ $labels.host_name }} has memory errors.",
            description=(
                "About {{ $value | humanize }} uncorrectable memory errors occurred in the last "
                "15 minutes. Later results of run {{ $labels.ml_run_name }} may be wrong."
            ),
            dashboard="otel-mlperf-gpus",
            because="Corrected errors are excluded: a few of them are normal.",
        ),
    ),
    Rule(
        id="gpu_xid",
        name="GpuXid",
        severity="critical",
        threshold=0,
        summary="the driver reported {value:.0f} XID errors for {hw_name}",
        action=(
            "Look up the XID number (dmesg, or the metric ml.accelerator.xid): 13 and 31 are "
            "mostly errors of the program; 48, 63, 64, 79, 94 and 95 mean that the GPU needs a "
            "reset or a replacement."
        ),
        of_ended=True,
        measured=MeasuredSeries(metric=names.HW_ERRORS, where=((names.ERROR_TYPE, ("xid",)),)),
        by=_GPU,
        over_s=5 * MINUTE_S,
        alert=Alert(
            labels=(names.HOST_NAME,),
            summary=(
                "The driver reports XID errors of {{ $labels.hw_name }} of {{ $labels.host_name }}."
            ),
            description=(
                "About {{ $value | humanize }} XID errors were reported in the last 15 minutes. "
                "Run {{ $labels.ml_run_name }} may hang, or its process may have ended."
            ),
            dashboard="otel-mlperf-gpus",
        ),
    ),
    Rule(
        id="gpu_lost",
        name="GpuLost",
        severity="critical",
        threshold=0,
        summary="{hw_name} stopped responding",
        action="Check dmesg (NVRM, XID 79): the GPU or the machine needs a reset.",
        of_ended=True,
        measured=MeasuredSeries(metric=names.DEVICE_LOST),
        by=_GPU,
        over_s=5 * MINUTE_S,
        alert=Alert(
            labels=(names.HOST_NAME,),
            summary=("{{ $labels.hw_name }} of {{ $labels.host_name }} has stopped responding."),
            description=(
                "The GPU is off the bus or requires a reset, or the driver hangs. The node "
                "belongs to run {{ $labels.ml_run_name }}."
            ),
            dashboard="otel-mlperf-gpus",
        ),
    ),
)
