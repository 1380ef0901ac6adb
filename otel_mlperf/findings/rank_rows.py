"""Rows of the findings table about differences between ranks, and collectives."""

from __future__ import annotations

from typing import Final

from otel_mlperf import names
from otel_mlperf.findings.finding_row import MINUTE_S, Alert, FindingRow, MeasuredSeries, Rule

RANK_ROWS: Final[tuple[FindingRow, ...]] = (
    FindingRow(
        id="straggler",
        name="SlowRank",
        severity="warning",
        threshold=1.2,
        min_step_share=0.05,
        summary=(
            "rank {rank} likely delays the other ranks: its {section} takes {value:.1f} × the "
            "median time of all ranks"
        ),
        action=(
            "Check the node of that rank (clocks, throttling, CPU, other programs), then the "
            "rank's share of the work."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="uneven_shards",
        name="UnevenShards",
        severity="warning",
        threshold=1.2,
        summary=(
            "rank {rank} has {value:.1f} × as many {what} as the median rank, and the other "
            "ranks wait for it"
        ),
        action=(
            "Give every rank the same amount of data: use a DistributedSampler over the whole "
            "data set, shards of equal size (split the largest), batches of equal size, and "
            "samples that are shuffled or bucketed by length before they are distributed."
        ),
        of_ended=True,
    ),
    Rule(
        id="collectives",
        name="Collectives",
        severity="warning",
        threshold=0.3,
        summary="collectives take {value:.0%} of a step",
        action=(
            "Use fewer and larger collectives: no barrier or scalar all_reduce in each step, "
            "model.no_sync() while gradients are accumulated, larger gradient buckets, or "
            "bfloat16 gradients (a DDP communication hook). If ranks wait for each other, give "
            "every rank the same amount of work."
        ),
        of_ended=True,
        measured=MeasuredSeries(
            metric=names.SECTION_SELF_TIME,
            where=(
                (names.SECTION_CATEGORY, (names.COMMUNICATION,)),
                (names.ML_PHASE, (names.TRAIN,)),
            ),
        ),
        per=MeasuredSeries(metric=names.STEP_DURATION, where=((names.ML_PHASE, (names.TRAIN,)),)),
        over_s=MINUTE_S,
        alert=Alert(
            expr=(
                "sum by (job, ml_run_name)\n"
                '(rate(ml_section_self_time_seconds_total{ml_phase="train",'
                'ml_section_category="communication"}[5m]))\n'
                "/ sum by (job, ml_run_name)\n"
                '(rate(ml_section_self_time_seconds_total{ml_phase="train"}[5m]))'
            ),
            summary="Steps of run {{ $labels.ml_run_name }} spend much time in collectives.",
            description=(
                "{{ $value | humanizePercentage }} of the step time is spent in collectives "
                "recorded as sections, averaged over the ranks."
            ),
            dashboard="otel-mlperf-ranks",
            group="training",
            after="10m",
            because=(
                "Divided by the time of all sections, because step durations are histograms "
                "(native or classic)."
            ),
        ),
    ),
)
