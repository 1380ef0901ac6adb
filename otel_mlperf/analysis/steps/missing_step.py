"""What is there in place of a step that was not kept, or is not there at all?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_mlperf.analysis.run import item_accounts

if TYPE_CHECKING:
    from otel_mlperf.store.run_folders import RunFolder
    from otel_mlperf.store.table_reader import Store

_NEARBY = 5


def nearby_steps(store: Store, phase: str, number: int) -> list[int]:
    """Numbers of the nearest steps with spans."""
    found = store.rows(
        "SELECT number FROM steps WHERE phase = $phase AND kept IS NOT NULL GROUP BY number "
        "ORDER BY abs(number - $number), number LIMIT $most",
        phase=phase,
        number=number,
        most=_NEARBY,
    )
    return sorted(row[0] for row in found)


def no_such_step(
    store: Store, run: RunFolder, number: int | None, phase: str, rank: int | None
) -> str:
    """What was looked for, and what there is."""
    which = f"{phase} step {number}" if number is not None else f"a kept {phase} step"
    tried = f"looking for {which} of run {run.short_id}"
    tried += f" on rank {rank}" if rank is not None else ""
    found = store.rows(
        "SELECT phase, min(number), max(number), count(DISTINCT rank) FROM steps "
        "GROUP BY phase ORDER BY min(start_ns)"
    )
    if not found:
        return f"{tried}: no step has ended in this run; see otel-mlperf summary {run.short_id}"
    if all(name != phase for name, *_ in found):
        return f"{tried}: its phases are {', '.join(name for name, *_ in found)}"
    there = ", ".join(
        f"{name} {first} to {last} on {ranks} rank{'s' * (ranks != 1)}"
        for name, first, last, ranks in found
    )
    within = any(
        name == phase and number is not None and first <= number <= last
        for name, first, last, _ in found
    )
    lost = item_accounts.sections_lost(item_accounts.read_accounts(run.path)) if within else 0
    if lost:
        return (
            f"{tried}: it was lost, with others: {lost:,} sections found no room in shared memory; "
            f"see otel-mlperf doctor {run.short_id}"
        )
    return f"{tried}: there is none; the steps that ended are {there}"
