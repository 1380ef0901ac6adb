"""Rows of the findings table about data: waits, loaders, batches and copies to devices."""

from __future__ import annotations

from typing import Final

from otel_mlperf import names
from otel_mlperf.findings.finding_row import MINUTE_S, Alert, FindingRow, MeasuredSeries, Rule

_WAITED: Final = (
    'ml_section_self_time_seconds_total{ml_phase="train",ml_section_category="data_loading"}[5m]'
)
_SPENT: Final = 'ml_section_self_time_seconds_total{ml_phase="train"}[5m]'

LOADING_ROWS: Final[tuple[FindingRow, ...]] = (
    FindingRow(
        id="uneven_data_wait",
        name="RankWaitsForData",
        severity="warning",
        threshold=0.1,
        action=(
            "Check the node of that rank (disk, network, CPU, other programs), then the data "
            "shard that the rank reads."
        ),
        alert=Alert(
            expr=(
                "sum by (job, ml_run_name, ml_distributed_rank)\n"
                f"(rate({_WAITED}))\n"
                "/ sum by (job, ml_run_name, ml_distributed_rank)\n"
                f"(rate({_SPENT}))\n"
                "- on (job, ml_run_name) group_left ()\n"
                "quantile by (job, ml_run_name) (0.5,\n"
                "sum by (job, ml_run_name, ml_distributed_rank)\n"
                f"(rate({_WAITED}))\n"
                "/ sum by (job, ml_run_name, ml_distributed_rank)\n"
                f"(rate({_SPENT})))"
            ),
            summary=(
                "Rank {{ $labels.ml_distributed_rank }} of run {{ $labels.ml_run_name "
                "}} waits for data more than other ranks."
            ),
            description=(
                "The data wait of this rank exceeds the median of all ranks by {{ $value | "
                "humanizePercentage }} of a step, and the other ranks wait for this rank."
            ),
            dashboard="otel-mlperf-ranks",
            group="training",
            after="10m",
            because=(
                "In a synchronous job, step times are equal on all ranks, but data waits are not."
            ),
        ),
    ),
    Rule(
        id="data_loading",
        name="DataWait",
        severity="warning",
        threshold=0.3,
        summary="training waits for data {value:.0%} of the time",
        action=(
            "Use more DataLoader workers if CPUs are free. Otherwise make samples cheaper to "
            "load or use faster storage: `otel-mlperf findings` shows the cause."
        ),
        of_ended=True,
        measured=MeasuredSeries(
            metric=names.SECTION_SELF_TIME,
            where=(
                (names.SECTION_CATEGORY, (names.DATA_LOADING,)),
                (names.ML_PHASE, (names.TRAIN,)),
            ),
        ),
        per=MeasuredSeries(metric=names.STEP_DURATION, where=((names.ML_PHASE, (names.TRAIN,)),)),
        over_s=MINUTE_S,
        alert=Alert(
            expr=(
                "sum by (job, ml_run_name)\n"
                f"(rate({_WAITED}))\n"
                "/ sum by (job, ml_run_name)\n"
                f"(rate({_SPENT}))"
            ),
            summary="Run {{ $labels.ml_run_name }} waits for data.",
            description=(
                "Steps spend {{ $value | humanizePercentage }} of their time waiting for the "
                "next batch."
            ),
            dashboard="otel-mlperf-host",
            group="training",
            after="10m",
            because=(
                "Divided by the time of all sections, because step durations are histograms "
                "(native or classic)."
            ),
        ),
    ),
    FindingRow(
        id="worker_startup",
        name="WorkerStartup",
        severity="warning",
        threshold=0.15,
        summary=(
            "the DataLoader workers of {dataset} are restarted for each of {passes:.0f} passes: "
            "{each} per pass, {value:.0%} of the training time"
        ),
        action=(
            "Use DataLoader(..., persistent_workers=True) and one loader for all epochs: every "
            "pass then reuses the same workers."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="slow_worker",
        name="SlowWorker",
        severity="warning",
        threshold=0.1,
        summary=(
            "DataLoader worker {worker} of {dataset} takes {times:.1f} × as long per batch as "
            "the other workers: batches are delivered in order, so waiting for this worker "
            "costs {value:.0%} of a step"
        ),
        action=(
            "Check that worker, likely its part of the data: {reason}. Distribute the work "
            "evenly (shards of equal size, shuffled samples): more workers will not help."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="collate",
        name="SlowCollate",
        severity="warning",
        threshold=0.5,
        min_step_share=0.1,
        summary=(
            "collate_fn takes {value:.0%} of the loading time of a batch of {dataset}, and the "
            "steps wait for these batches"
        ),
        action=(
            "Make collate_fn cheaper: do the work per sample in `__getitem__` or before the "
            "training, and build each tensor of the batch once (torch.stack, pad_sequence), "
            "without loops over elements."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="storage",
        name="SlowStorage",
        severity="warning",
        threshold=0.5,
        min_step_share=0.1,
        summary=(
            "loading samples of {dataset} spends {value:.0%} of its time waiting, likely for files "
            "or the network, without using a CPU, and the steps wait for these samples"
        ),
        action=(
            "Read ahead with {workers}: workers that wait need no CPU. Or make reading cheaper: "
            "copy the data to a local disk or into memory first, store the data in a few large "
            "files, and read each sample only once."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="uneven_batches",
        name="UnevenBatches",
        severity="warning",
        threshold=0.15,
        summary=(
            "step time grows with the number of elements in a batch, and {padding:.0%} of a "
            "batch is likely padding, which costs {value:.0%} of a step"
        ),
        action=(
            "Batch samples of similar length (a batch_sampler with length buckets), pad only to the"
            " longest sample of the batch, or pack sequences."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="transfer",
        name="CopiesToDevice",
        severity="warning",
        threshold=0.1,
        summary="copies to the device take {value:.0%} of a step and do not overlap with "
        "computation{how}",
        action=(
            "Use DataLoader(..., pin_memory=True) and batch.to(device, non_blocking=True): the "
            "next batch is then copied while the device computes. Copy data as bytes (uint8), "
            "and convert it on the device."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="cold_start",
        name="ColdStart",
        severity="warning",
        threshold=0.1,
        summary="{what}, {times:.1f} × the typical time: the excess is {value:.0%} of the "
        "training time",
        action=(
            "Check which work happens only the first time: reading files that are not yet in "
            "the page cache (copy or read them beforehand), compilation, kernel benchmarks, "
            "filling caches. Also check what the program sets up at the start of each pass."
        ),
        of_ended=True,
    ),
)
