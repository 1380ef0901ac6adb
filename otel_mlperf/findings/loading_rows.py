"""Rows of the findings table about data: waits for it, loaders, batches and copies."""

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
                "}} waits for data more than the others."
            ),
            description=(
                "Its share of waiting lies {{ $value | humanizePercentage }} of a step "
                "above the median of the ranks, and every other rank waits for it."
            ),
            what_to_do=(
                "Look at that rank's node: its disk, its network, its CPU and who else "
                "runs there; then at the shard of the data that it reads."
            ),
            dashboard="otel-mlperf-ranks",
            group="training",
            after="10m",
            because=(
                "Step times of a synchronous job are equal on all ranks; their data waits are not."
            ),
        ),
    ),
    Rule(
        id="data_loading",
        name="DataWait",
        severity="warning",
        threshold=0.3,
        summary="training waits for data for {value:.0%} of its time",
        action=(
            "Use more DataLoader workers where CPUs are free, else cheaper samples or faster "
            "storage: `otel-mlperf findings` says which."
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
                "{{ $value | humanizePercentage }} of the time of its steps passes with "
                "waiting for the next batch."
            ),
            what_to_do=(
                "More DataLoader workers, a larger prefetch_factor, faster storage. "
                "Look whether workers are at one core each, the container is throttled, "
                "or a disk is busy all the time."
            ),
            dashboard="otel-mlperf-host",
            group="training",
            after="10m",
        ),
    ),
    FindingRow(
        id="worker_startup",
        name="WorkerStartup",
        severity="warning",
        threshold=0.15,
        summary=(
            "the workers of {dataset} are started anew for each of {passes:.0f} passes, "
            "{each} each: {value:.0%} of the training"
        ),
        action=(
            "DataLoader(..., persistent_workers=True), and one loader for all epochs: the workers "
            "then stay from pass to pass."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="slow_worker",
        name="SlowWorker",
        severity="warning",
        threshold=0.1,
        summary=(
            "worker {worker} of {dataset} takes {times:.1f} × as long for a batch as the others, "
            "and batches come in order: the wait for it is {value:.0%} of a step"
        ),
        action=(
            "Look at what is different for that worker, likely its part of the data: {reason}. "
            "Spread the work evenly (shards of one size, shuffled samples); more workers will not "
            "help."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="collate",
        name="SlowCollate",
        severity="warning",
        threshold=0.5,
        matters=0.1,
        summary="collate_fn takes {value:.0%} of a batch of {dataset}, and the steps wait for it",
        action=(
            "Make collate_fn cheaper: what can be done for a sample belongs in `__getitem__` or "
            "before the training; build each tensor of the batch once (torch.stack, pad_sequence), "
            "without loops over its elements."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="storage",
        name="SlowStorage",
        severity="warning",
        threshold=0.5,
        matters=0.1,
        summary=(
            "samples of {dataset} wait for {value:.0%} of a batch's time without using a CPU, "
            "likely for files or a network, and the steps wait for them"
        ),
        action=(
            "Read ahead: {workers} (they wait and need no CPU of their own). Or make reading "
            "cheaper: copy the data to a local disk or into memory first, keep it in few large "
            "files, read a sample once."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="uneven_batches",
        name="UnevenBatches",
        severity="warning",
        threshold=0.15,
        summary=(
            "a step's time follows the size of its batch, and {padding:.0%} of that is likely "
            "padding: {value:.0%} of a step"
        ),
        action=(
            "Put samples of similar length into a batch (a batch_sampler that sorts by length in "
            "buckets), pad to the longest of the batch only, or pack sequences."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="transfer",
        name="CopiesToDevice",
        severity="warning",
        threshold=0.1,
        summary="copies to the device take {value:.0%} of a step by themselves, {how}",
        action=(
            "DataLoader(..., pin_memory=True) and batch.to(device, non_blocking=True): the next "
            "batch then goes over while the device works. Copy bytes (uint8) and convert them "
            "there."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="cold_start",
        name="ColdStart",
        severity="warning",
        threshold=0.1,
        summary="{what}, {times:.1f} × as long as later: {value:.0%} of the training",
        action=(
            "Look at what is done the first time alone: files that are read before they are in "
            "memory (copy or read them beforehand), compilation, benchmarks of kernels, caches of "
            "the program; or at what is set up at each begin of a pass."
        ),
        of_ended=True,
    ),
)
