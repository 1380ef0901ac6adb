"""Selection of steps and ranks of a run as SQL conditions; errors that list the existing steps.

The conditions apply to the views of a store, so rows outside the selection are never read.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from otel_mlperf import names
from otel_mlperf.analysis.run import item_accounts
from otel_mlperf.analysis.run.run_processes import no_such_rank
from otel_mlperf.analysis.steps.step_shares import main_phase
from otel_mlperf.errors import NoSuchStep
from otel_mlperf.store.table_reader import Store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_mlperf.store.run_folders import RunFolder

_TRACES = (
    "SELECT trace_id FROM steps WHERE phase = $phase AND number BETWEEN $first AND $last "
    "UNION SELECT trace_id FROM spans "  # for steps that were open when their process died
    "WHERE phase = $phase AND n IS NOT NULL AND number BETWEEN $first AND $last"
)

_MAX_NEARBY = 5

_ANYTHING = (
    "SELECT 1 FROM processes UNION ALL SELECT 1 FROM steps UNION ALL SELECT 1 FROM spans LIMIT 1"
)


class Selected(NamedTuple):
    """Selection of the rows of a whole run, or of some of its steps and ranks."""

    run: RunFolder
    store: Store
    """Store without the rows of other ranks."""
    wanted: str = "true"
    """SQL condition that selects rows of table ``steps`` or ``spans``."""
    values: Mapping[str, object] = MappingProxyType({})
    """Values of the parameters (``$name``) in the condition."""
    start_ns: int = -(1 << 63)
    end_ns: int = (1 << 63) - 1
    """End of the selected time (Unix time), which starts at ``start_ns``."""


def select(
    run: RunFolder,
    numbers: tuple[int, int] | None = None,
    rank: int | None = None,
) -> Selected:
    """Return the selection of steps ``numbers[0]`` to ``numbers[1]``; None: the whole run.

    A step includes everything in the step's trace, also events of a profiler window. Numbers refer
    to training steps; without training, to steps of the first phase.

    Raises:
        NoSuchRun: no process or record of rank ``rank`` is known.
        NoSuchStep: no step has such a number, or none on that rank.
    """
    store = Store(run.path, rank)
    if rank is not None and not store.rows(_ANYTHING):
        raise no_such_rank(run, rank)
    if numbers is None:
        return Selected(run, store)
    # Numbers are unique within a phase only: step 7 of the validation is another step.
    phase = main_phase(store) or names.TRAIN
    values: dict[str, object] = {"phase": phase, "first": numbers[0], "last": numbers[1]}
    ((start, end),) = store.rows(
        f"SELECT min(start_ns), max(end_ns) FROM (SELECT start_ns, end_ns, trace_id FROM steps "
        f"UNION ALL SELECT start_ns, end_ns, trace_id FROM spans) WHERE trace_id IN ({_TRACES})",
        **values,
    )
    if start is None:
        raise NoSuchStep(_no_such_steps(store, run, numbers, phase))
    return Selected(run, store, f"trace_id IN ({_TRACES})", values, start, end)


def _no_such_steps(store: Store, run: RunFolder, numbers: tuple[int, int], phase: str) -> str:
    first, last = numbers
    which = f"step {first}" if first == last else f"steps {first} to {last}"
    phases = store.rows(
        "SELECT phase, min(number), max(number) FROM steps GROUP BY phase ORDER BY min(start_ns)"
    )
    existing = ", ".join(f"{name} {least} to {most}" for name, least, most in phases) or "none"
    return (
        f"looking for {phase} {which} of run {run.short_id}: not found; completed steps: {existing}"
    )


def nearby_steps(store: Store, phase: str, number: int) -> list[int]:
    """Return the numbers of the few sampled steps that are nearest to ``number``."""
    rows = store.rows(
        "SELECT number FROM steps WHERE phase = $phase AND kept IS NOT NULL GROUP BY number "
        "ORDER BY abs(number - $number), number LIMIT $most",
        phase=phase,
        number=number,
        most=_MAX_NEARBY,
    )
    return sorted(row[0] for row in rows)


def no_such_step(
    store: Store, run: RunFolder, number: int | None, phase: str, rank: int | None
) -> str:
    """Return the error message for a missing step (``number`` None: any sampled step)."""
    which = f"{phase} step {number}" if number is not None else f"a sampled {phase} step"
    tried = f"looking for {which} of run {run.short_id}"
    tried += f" on rank {rank}" if rank is not None else ""
    phases = store.rows(
        "SELECT phase, min(number), max(number), count(DISTINCT rank) FROM steps "
        "GROUP BY phase ORDER BY min(start_ns)"
    )
    if not phases:
        return f"{tried}: no step has ended in this run; see otel-mlperf summary {run.short_id}"
    if all(name != phase for name, *_ in phases):
        return (
            f"{tried}: the run has only steps of phase {', '.join(name for name, *_ in phases)}; "
            f"for work outside steps, see otel-mlperf summary {run.short_id}"
        )
    existing = ", ".join(
        f"{name} {first} to {last} on {ranks} rank{'s' * (ranks != 1)}"
        for name, first, last, ranks in phases
    )
    within = any(
        name == phase and number is not None and first <= number <= last
        for name, first, last, _ in phases
    )
    lost = item_accounts.sections_lost(item_accounts.read_accounts(run.path)) if within else 0
    if lost:
        return (
            f"{tried}: this step was lost: {lost:,} sections were dropped because the journal in "
            f"shared memory was full; see otel-mlperf doctor {run.short_id}"
        )
    return f"{tried}: not found; completed steps: {existing}"
