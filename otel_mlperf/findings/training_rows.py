"""Which conditions of the steps are worth a word?"""

from __future__ import annotations

from typing import Final

from otel_mlperf import names
from otel_mlperf.findings.finding_row import MINUTE_S, Alert, FindingRow, MeasuredSeries, Rule

_WAITED: Final = (
    'ml_section_self_time_seconds_total{ml_phase="train",ml_section_category="data_loading"}[5m]'
)
_SPENT: Final = 'ml_section_self_time_seconds_total{ml_phase="train"}[5m]'

TRAINING_ROWS: Final[tuple[FindingRow, ...]] = (
    FindingRow(
        id="no_progress",
        name="RunMakesNoSteps",
        severity="critical",
        threshold=600,
        alert=Alert(
            expr=(
                "time() - max by (job, ml_run_name)\n"
                "(ml_run_last_step_time_seconds or ml_run_start_time_seconds)"
            ),
            summary="Run {{ $labels.ml_run_name }} makes no steps.",
            description=(
                "The last step of any rank ended {{ $value | humanizeDuration }} ago, "
                "and the run has not ended. A checkpoint or a set-up of that length "
                "looks the same."
            ),
            what_to_do=(
                'Look at "Open now" in the dashboard, or otel-mlperf top: one rank in '
                "another section than the others is the one that they wait for; all in "
                "a collective means that a rank has gone; all in data.load means "
                "storage."
            ),
            dashboard="otel-mlperf-ranks",
            group="training",
            after="1m",
            because=(
                "A run that ended in good order stops sending, so it is not meant. The "
                "run's start counts as long as there is no step."
            ),
        ),
    ),
    FindingRow(
        id="step_drift",
        name="StepTimeRegressed",
        severity="warning",
        threshold=1.15,
        summary="steps take {value:.2f} × as long at the end as at the beginning",
        action=(
            "Compare a late step with an early one (otel-mlperf show --step): something that grows "
            "(a list, a cache, a log, a graph that is kept), a device that throttles, or longer "
            "inputs."
        ),
        of_ended=True,
        alert=Alert(
            # Of minutes beside hours; a run that has ended is judged by all of its steps.
            threshold=1.3,
            expr=(
                "(histogram_avg(sum by (job, ml_run_name)\n"
                '(rate(ml_training_step_duration_seconds{ml_phase="train"}[5m])))\n'
                "/ quantile_over_time(0.5, (histogram_avg(sum by (job, ml_run_name)\n"
                '(rate(ml_training_step_duration_seconds{ml_phase="train"}[5m]))))[6h:5m])\n'
                "and count_over_time((histogram_avg(sum by (job, ml_run_name)\n"
                '(rate(ml_training_step_duration_seconds{ml_phase="train"}[5m]))))[6h:5m]) >=\n'
                "6)"
            ),
            summary="Steps of run {{ $labels.ml_run_name }} take longer than they used to.",
            description=(
                "The mean step of the last five minutes takes {{ $value | "
                "humanizePercentage }} of the median of the last six hours."
            ),
            what_to_do=(
                '"Where a step goes" shows the kind of work that grew: data_loading - '
                "storage and workers; backward or forward - clocks and throttling of "
                "the GPUs, one slow rank; communication - the network, or the rank that "
                "comes last."
            ),
            dashboard="otel-mlperf-training-run",
            group="training",
            after="10m",
            because=(
                "Against its own normal, the median of six hours; only with half an hour of it."
            ),
        ),
    ),
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
        id="unseen_steps",
        name="StepsUnseen",
        severity="warning",
        # Backward passes, of a run that did not finish: so many make no end of a first step.
        threshold=20,
        summary="no step of a PyTorch loop was seen: {seen}",
        action=(
            "Write `import otel_mlperf as om` and, around one turn of the loop, `with om.step():`; "
            "what is seen inside it then belongs to the step."
        ),
        of_ended=True,
    ),
)
