"""List of runs, one line per run: outcome, steps and duration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from otel_mlperf.analysis.run.run_processes import read_processes
from otel_mlperf.analysis.steps.step_shares import count_steps, main_phase
from otel_mlperf.errors import StoreError
from otel_mlperf.store.table_reader import Store

if TYPE_CHECKING:
    from otel_mlperf.store.run_folders import RunFolder

UNREADABLE = "unreadable"


class RunLine(msgspec.Struct, frozen=True, kw_only=True):
    """One run in the list."""

    id: str
    short_id: str
    name: str
    path: str
    started_ns: int
    outcome: str
    ranks: int
    steps: int
    """Number of training steps of one rank; without training, of steps of the first phase."""
    duration_ns: int
    tags: list[str]


class RunList(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="runs/1"):
    """Runs, the newest first."""

    runs: list[RunLine]


def overview(run: RunFolder) -> RunLine:
    """Return the line of one run; the outcome of an unreadable run is ``unreadable``."""
    outcome, ranks, steps, duration = UNREADABLE, 0, 0, 0
    try:
        store = Store(run.path)
        processes = read_processes(store)
        outcome, ranks, duration = processes.outcome, processes.ranks, processes.duration_ns
        # Must be read last: otherwise an unreadable table of steps would hide the other facts.
        steps = count_steps(store, main_phase(store))
    except StoreError:  # `summary` of that run reports the error
        pass
    return RunLine(
        id=run.facts.id,
        short_id=run.short_id,
        name=run.facts.name,
        path=str(run.path),
        started_ns=run.facts.started_ns,
        outcome=outcome,
        ranks=ranks,
        steps=steps,
        duration_ns=duration,
        tags=run.facts.tags,
    )
