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
            "one step in every {period} takes {times:.1f} × the median step time, mostly in "
            "{section}: the excess is {value:.1%} of the time of all steps"
        ),
        action=(
            "Check what the loop does every {period} steps (logging, printing, saving, "
            "evaluating), and move this work to fewer steps, to another thread, or outside the "
            "step."
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
            "the time of {section} varies: in one step of twenty, this time is at least "
            "{value:.1f} × its median"
        ),
        action=(
            "Compare a slow step with a typical step (otel-mlperf show --step). Possible "
            "causes: inputs of different lengths (sort or pad them), waits for a device or "
            "another rank, other programs on the host."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="garbage_collection",
        name="GarbageCollection",
        severity="warning",
        threshold=0.05,
        summary="Python's garbage collections take {value:.0%} of a step",
        action=(
            "Call gc.freeze() after set-up, or gc.disable() and gc.collect() every few hundred "
            "steps: otherwise full collections visit all objects that live as long as the "
            "program."
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
            "Put `with om.span(...)` around the parts of the loop that are in no section. In "
            "runs with at least about five seconds of steps, the most expensive line of code is "
            "reported."
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
            "If not every step needs this work (metrics, logging, plots), do it every N steps "
            "or once per epoch. Otherwise move the work to another thread or to DataLoader "
            "workers."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="costly_line",
        name="CostlyLine",
        severity="warning",
        threshold=0.2,
        summary=(
            "the program's own lines outside all sections likely take {value:.0%} of a step, "
            "most of that time in {place}"
        ),
        action=(
            "Run these lines only every N steps or once per epoch, for a whole batch in one "
            "operation (tensor operations instead of a loop over elements), or in another "
            "process (DataLoader workers for data preparation)."
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
            "Validate less often, on a part of the data, with a larger batch, or under "
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
        summary="the memory of {of} grows steadily: by {grown} ({value:.0%}) in {time}",
        action=(
            "Find what keeps objects alive: losses that are summed with their graph (use "
            ".item() or .detach()), lists of outputs, unbounded caches. om.memory_growth() "
            "lists which objects and tensors accumulated between two points of the program."
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
            "Check the open section of each rank (otel-mlperf top, or the dashboard). If one rank "
            "is in another section, the other ranks wait for it. If all ranks are in a collective, "
            "one rank has stopped. If all ranks are in data.load, storage is slow."
        ),
        alert=Alert(
            expr=(
                "time() - max by (job, ml_run_name)\n"
                "(ml_run_last_step_time_seconds or ml_run_start_time_seconds)"
            ),
            summary="Run {{ $labels.ml_run_name }} makes no steps.",
            description=(
                "No rank has completed a step for {{ $value | humanizeDuration }}, and the run "
                "has not ended. A checkpoint or a set-up of that length also triggers this "
                "alert."
            ),
            dashboard="otel-mlperf-ranks",
            group="training",
            after="1m",
            because=(
                "A run that ended normally stops sending metrics and does not fire. Until the "
                "first step, the start of the run counts."
            ),
        ),
    ),
    FindingRow(
        id="step_drift",
        name="StepTimeRegressed",
        severity="warning",
        threshold=1.15,
        summary="steps take {value:.2f} × as long in the last third of the run as in the first "
        "third",
        action=(
            "Compare a late step with an early step (otel-mlperf show --step). Possible causes: "
            "growing data (a list, a cache, a log, a retained graph), a throttled device, "
            "longer inputs."
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
            summary="Steps of run {{ $labels.ml_run_name }} have become slower.",
            description=(
                "The mean step time of the last five minutes is {{ $value | humanizePercentage "
                "}} of the median of the last six hours."
            ),
            dashboard="otel-mlperf-training-run",
            group="training",
            after="10m",
            because=(
                "Compared with the run's own median of six hours; requires half an hour of data."
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
            "Write `import otel_mlperf as om`, and put `with om.step():` around one iteration "
            "of the loop: sections recorded inside this block then belong to the step."
        ),
        of_ended=True,
    ),
)
