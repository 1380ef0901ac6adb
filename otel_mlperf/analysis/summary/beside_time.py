"""Sections concurrent to the steps: on other threads and tasks, and in DataLoader workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from otel_mlperf.analysis.steps.step_shapes import Row
from otel_mlperf.analysis.steps.step_shares import shown
from otel_mlperf.analysis.summary.summary_shapes import OutsideShare

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_mlperf.analysis.run.run_processes import Processes
    from otel_mlperf.analysis.steps.step_shapes import StepFigures
    from otel_mlperf.analysis.summary.outside_time import Node
    from otel_mlperf.store.table_reader import Store


def beside_steps(nodes: list[Node], processes: Processes) -> list[OutsideShare]:
    """Return sections on other threads and tasks, in no step; means per rank, longest first.

    They are concurrent: their time may exceed all time outside steps.
    """
    sums: dict[str, list[int]] = {}
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if not node.beside:
            pending += node.inside
            continue
        total = sums.setdefault(shown(node.name), [0, 0])
        total[0] += node.total_ns
        total[1] += node.count
    ranks = processes.ranks
    shares = [
        OutsideShare(name=name, sum_ns=total / ranks, count=round(count / ranks))
        for name, (total, count) in sums.items()
    ]
    return sorted(shares, key=lambda share: -share.sum_ns)


def with_rows_beside(store: Store, steps: StepFigures, nodes: list[Node]) -> StepFigures:
    """Add a row to the step figures for each concurrent section that is in no step.

    A DataLoader worker is in no step: the mean is its sections' own time in the whole run over all
    steps of the phase. Figures of single steps are not known.
    """
    ((ran,),) = store.rows("SELECT count(*) FROM steps WHERE phase = $phase", phase=steps.phase)
    rows = [
        Row(
            name=name,
            category=own.category,
            mean_ns=own.spent_ns / ran,
            p95_ns=None,
            share=own.spent_ns / ran / steps.mean_ns if steps.mean_ns else 0.0,
            beside=True,
            aggregate=is_aggregate,
        )
        for (name, is_aggregate), own in _own_times(nodes).items()
        if own.spent_ns
    ]
    return replace(steps, rows=[*steps.rows, *sorted(rows, key=lambda row: -row.mean_ns)])


@dataclass(slots=True)
class _Own:
    """Own time of all sections of one name."""

    category: str
    spent_ns: int = 0


def _own_times(nodes: list[Node]) -> dict[tuple[str, bool], _Own]:
    """Return own times by name, and by whether the section is aggregated."""
    own: dict[tuple[str, bool], _Own] = {}
    for node in _beside(nodes):
        key = (shown(node.name), node.aggregate)
        own.setdefault(key, _Own(node.category)).spent_ns += node.self_ns
    return own


def _beside(nodes: list[Node]) -> Iterator[Node]:
    """Yield all sections concurrent to the steps, including nested ones."""
    pending = [(node, False) for node in reversed(nodes)]
    while pending:
        node, is_inside = pending.pop()
        is_beside = is_inside or node.beside
        if is_beside:
            yield node
        pending += [(below, is_beside) for below in reversed(node.inside)]
