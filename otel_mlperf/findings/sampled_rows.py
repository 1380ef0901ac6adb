"""From when on is it worth a word what lines of the program hold up the main thread?"""

from __future__ import annotations

from typing import Final

from otel_mlperf.findings.finding_row import FindingRow

SAMPLED_ROWS: Final[tuple[FindingRow, ...]] = (
    FindingRow(
        id="sync_in_loop",
        name="SyncInLoop",
        severity="warning",
        threshold=0.1,
        summary=(
            "the loop likely spends {value:.0%} of a step {doing}, most of it in {call} ({place})"
        ),
        action=(
            "Do it every so many steps, or in another thread: keep losses as tensors and call "
            ".item() when they are printed, log and write what has been collected, flush seldom."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="blocked_loop",
        name="BlockedLoop",
        severity="warning",
        threshold=0.1,
        summary="for {value:.0%} of a step the loop stands still in no section: likely {doing}",
        action=(
            "Write, log, send and save what has been collected every so many steps, or in another "
            "thread, and flush seldom; ask other processes for results before they are needed."
        ),
        of_ended=True,
    ),
    FindingRow(
        id="conversions",
        name="Conversions",
        severity="warning",
        threshold=0.1,
        summary=(
            "converting between tensors, arrays and Python numbers likely takes {value:.0%} of a "
            "step, most of it {call} ({place})"
        ),
        action=(
            "Stay with tensors: operate on whole tensors instead of their elements, convert once "
            "before the loop, torch.from_numpy() instead of lists, and no .tolist(), .numpy() or "
            ".item() for what goes back into a tensor."
        ),
        of_ended=True,
    ),
)
