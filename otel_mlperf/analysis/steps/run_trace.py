"""Trace of a run without steps, on every rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_mlperf import ids
from otel_mlperf.analysis.run.run_processes import no_such_rank
from otel_mlperf.analysis.steps.annotated_step import has_recorded_steps
from otel_mlperf.analysis.steps.step_records import read_spans
from otel_mlperf.analysis.steps.step_shapes import RankTrace, RunTrace
from otel_mlperf.store.table_reader import Store

if TYPE_CHECKING:
    from otel_mlperf.analysis.steps.step_shapes import Span
    from otel_mlperf.store.run_folders import RunFolder


def find_run_trace(
    run: RunFolder, rank: int | None = None, *, operators: bool = True
) -> RunTrace | None:
    """Return the sections of a run without steps: for each rank, the tree of the newest restart.

    The trace of a running run contains only sections that have ended. If ``operators``, profiled
    sections include operators. The result is None if the run has steps, or if no span of the run is
    stored yet.

    Raises:
        NoSuchRun: no process of rank ``rank`` is known.
        StoreError: a file of the run cannot be read.
    """
    if has_recorded_steps(Store(run.path)):
        return None
    store = Store(run.path, rank)
    processes = store.records(
        "SELECT rank, restart, start_ns, end_ns FROM processes "
        "QUALIFY restart = max(restart) OVER () ORDER BY rank"
    )
    if rank is not None and not processes:
        raise no_such_rank(run, rank)
    roots = [process | {"trace_id": _trace(run, process)} for process in processes]
    spans = read_spans(store, roots, operators=operators)
    ranks = [_rank_trace(process, spans.get(process["rank"], [])) for process in processes]
    if not any(of_rank.spans for of_rank in ranks):
        return None
    return RunTrace(
        id=run.facts.id,
        short_id=run.short_id,
        name=run.facts.name,
        restart=processes[0]["restart"],
        trace_id=_trace(run, processes[0]),
        ranks=ranks,
    )


def _rank_trace(process: dict[str, Any], spans: list[Span]) -> RankTrace:
    last = max((span.start_ns + span.duration_ns for span in spans), default=0)
    lived = process["end_ns"] - process["start_ns"] if process["end_ns"] else last
    return RankTrace(rank=process["rank"], duration_ns=lived, spans=spans)


def _trace(run: RunFolder, process: dict[str, Any]) -> str:
    return f"{ids.run_trace_id(run.facts.id, process['restart']):032x}"
