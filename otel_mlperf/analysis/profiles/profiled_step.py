"""What did the devices do for one profiled step?

From the rows of its single events, which are in the store whatever the budget sent: exact, and a
part of what its window comes to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_mlperf.analysis.profiles.kernel_rows import Whole, count_groups, table
from otel_mlperf.analysis.profiles.kernel_totals import find_collectives, find_copies, find_windows
from otel_mlperf.analysis.profiles.profiled_rows import count_step
from otel_mlperf.analysis.profiles.window_shapes import Kernels, ProfiledStepFacts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_mlperf.analysis.profiles.kernel_rows import By, Rows
    from otel_mlperf.analysis.profiles.profiled_steps import ProfiledStep, StepEvents


def find_step(
    tables: Mapping[str, Rows],
    chosen: Sequence[ProfiledStep],
    found: StepEvents,
    source: str,
    by: By | None = None,
    world_size: int | None = None,
) -> Kernels:
    """The step's kernels, or its operators where no device was at work for it.

    Args:
        tables: the rows of all windows.
        chosen: the step on each rank.
        found: its events.
        source: what was looked at.
        by: how rows are grouped.
        world_size: how many ranks the run has.
    """
    counted = count_step(tables, chosen, found)
    is_device = counted.busy_ns is not None
    digests = {one.digest for one in chosen}
    windows = [one for one in find_windows(tables) if one.digest in digests]
    step = ProfiledStepFacts(
        name=chosen[0].name,
        phase=chosen[0].phase,
        number=chosen[0].number,
        ranks=sorted({row["rank"] for row in found.events}),
        events=len(found.events),
        duration_ns=sum(found.lengths_ns.values()),
        busy_ns=counted.busy_ns,
        communication_ns=counted.communication_ns,
        exposed_communication_ns=counted.exposed_communication_ns,
    )
    by = by or ("kernel" if is_device else "operator")
    return Kernels(
        source=source,
        by=by,
        world_size=world_size,
        windows=windows,
        total=None,
        devices=[],
        rows=table(counted.rows, by, Whole(step.duration_ns, step.busy_ns), windows),
        groups=count_groups(counted.rows, is_device=is_device),
        collectives=find_collectives(counted.rows["totals"]),
        copies=find_copies(counted.rows["copies"]),
        gaps=[],
        memory=[],
        step=step,
    )
