"""Rows of the findings table about steps: progress, drift, patterns, memory growth."""

from __future__ import annotations

from typing import Final

from otel_mlperf.findings.finding_row import Alert, FindingRow

PATTERN_ROWS: Final[tuple[FindingRow, ...]] = (
    FindingRow(
        id="periodic_stall",
        name="PeriodicStall",
        severity="warning",
        threshold=0.01,
        summary=(
            "every {period} steps, one takes {times:.1f} × as long as the others, mostly in "
            "{section}: {value:.1%} of the steps' time"
        ),
        action=(
            "Check what the loop does every {period} steps (logging, printing, saving, evaluating),"
            " and do it less often, in another thread, or outside of the step."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="uneven_section",
        name="UnevenSection",
        severity="info",
        threshold=3.0,
        min_step_share=0.1,
        summary=(
            "{section} is uneven: in one step of twenty it takes {value:.1f} × its median or more"
        ),
        action=(
            "Compare a slow step with a usual one (otel-mlperf show --step): inputs of different "
            "lengths (sort or pad them), waits for a device or another rank, other programs on the "
            "host."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="garbage_collection",
        name="GarbageCollection",
        severity="warning",
        threshold=0.05,
        summary="garbage collections take {value:.0%} of a step",
        action=(
            "Call gc.freeze() after set-up, or gc.disable() and gc.collect() every few hundred "
            "steps: otherwise each collection visits all objects that live as long as the program."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="uncovered",
        name="TimeInNoSection",
        severity="info",
        threshold=0.2,
        summary="{value:.0%} of a step is in no section",
        action=(
            "Put `with om.span(...)` around the rest of the loop. After about five seconds of steps"
            " the most expensive line is reported."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="extra_section",
        name="ExtraSection",
        severity="info",
        threshold=0.15,
        summary=(
            "{section} takes {value:.0%} of a step, in addition to forward pass, backward pass and "
            "optimizer"
        ),
        action=(
            "If not every step needs it (metrics, logging, plots), do it every N steps or once an "
            "epoch; otherwise on another thread, or in the DataLoader's workers."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="costly_line",
        name="CostlyLine",
        severity="warning",
        threshold=0.2,
        summary=(
            "{value:.0%} of a step likely goes into the program's own lines between the parts of "
            "the training, most of it into {place}"
        ),
        action=(
            "Do it only every N steps or once an epoch, for the whole batch at once (tensor "
            "operations instead of a loop over elements), or in another process: DataLoader workers"
            " for data preparation."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="validation",
        name="ValidationShare",
        severity="info",
        threshold=0.15,
        summary="validation takes {value:.0%} of the run",
        action=(
            "Validate less often or on a part of the data, with a larger batch, under "
            "torch.inference_mode()."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="checkpoint",
        name="CheckpointShare",
        severity="warning",
        threshold=0.1,
        summary="checkpoints take {value:.0%} of the run",
        action=(
            "Save less often, to a faster disk, or asynchronously "
            "(torch.distributed.checkpoint.async_save)."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="memory_growth",
        name="MemoryGrowth",
        severity="warning",
        threshold=0.2,
        summary="memory of {of} grows steadily: by {grown} ({value:.0%}) in {time}",
        action=(
            "Find what keeps objects alive: losses that are summed with their graph (use .item() or"
            " .detach()), lists of outputs, unbounded caches; om.memory_growth() lists what has "
            "grown between two points."
        ),
        of_ended=True,
    ),
)


TRAINING_ROWS: Final[tuple[FindingRow, ...]] = (
    FindingRow(
        id="no_progress",
        name="RunMakesNoSteps",
        severity="critical",
        threshold=600,
        action=(
            "Check what each rank is in (otel-mlperf top, or the dashboard): one rank in another "
            "section than the other ranks is the one that they wait for; all ranks in a collective "
            "mean that one is gone; all in data.load mean storage."
        ),
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
            "Compare a late step with an early one (otel-mlperf show --step): something grows (a "
            "list, a cache, a log, a retained graph), a device throttles, or inputs become longer."
        ),
        of_ended=True,
        alert=Alert(
            # Higher than the row's, since the alert only compares minutes with hours.
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
                "The mean step of the last five minutes lasts {{ $value | humanizePercentage }} of "
                "the median of the last six hours."
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
        id="unseen_steps",
        name="StepsUnseen",
        severity="warning",
        # Number of backward passes of an unfinished run: a first step cannot contain so many.
        threshold=20,
        summary="no step of a PyTorch loop was detected: {seen}",
        action=(
            "Write `import otel_mlperf as om` and, around one iteration of the loop, `with "
            "om.step():`; recorded sections inside it then belong to the step."
        ),
        of_ended=True,
    ),
)
