"""Which patterns in the steps and the time of a finished run are worth a word?"""

from __future__ import annotations

from typing import Final

from otel_mlperf.findings.finding_row import FindingRow

PATTERN_ROWS: Final[tuple[FindingRow, ...]] = (
    FindingRow(
        id="periodic_stall",
        name="PeriodicStall",
        severity="warning",
        threshold=0.01,
        summary=(
            "every {period} steps one takes {times:.1f} × the others, most of it in {section}: "
            "{value:.1%} of the steps' time"
        ),
        action=(
            "Look at what the loop does every {period} steps (logging, printing, saving, "
            "evaluating), and do it less often, beside the step, or outside of it."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="uneven_section",
        name="UnevenSection",
        severity="info",
        threshold=3.0,
        matters=0.1,
        summary="{section} takes {value:.1f} × as long in one step of twenty as in the middle one",
        action=(
            "Compare a slow step with a usual one (otel-mlperf show --step): inputs of different "
            "lengths (sort or pad them), a device or a rank that is waited for, a neighbour."
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
            "Call gc.freeze() when all is set up, or gc.disable() and gc.collect() every few "
            "hundred steps: objects that live as long as the program are looked at each time."
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
            "Put `with om.span(...)` around what else the loop does. The line that takes most of "
            "it is named after some five seconds of steps."
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
            "Do it every so many steps or once an epoch, from what has been collected, for the "
            "whole batch at once (operations of tensors instead of a loop over elements), or in "
            "another process: DataLoader workers for what prepares data."
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
            "Save less often, to a faster disk, or beside the training "
            "(torch.distributed.checkpoint.async_save)."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="memory_growth",
        name="MemoryGrowth",
        severity="warning",
        threshold=0.2,
        summary=(
            "memory of {of} grows steadily: by {grown}, {value:.0%} of what it was, in {time}"
        ),
        action=(
            "Look for what keeps objects: losses that are added up with their graph "
            "(use .item() or .detach()), lists of outputs, caches without a limit; "
            "om.memory_growth() tells what has grown between two points."
        ),
        of_ended=True,
    ),
)
