"""The trace of a run outside its steps, on every rank."""

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
    """Return the trace of a run without steps since its newest restart: its sections as a tree.

    For a running run these are the sections that have ended. Profiled sections contain their
    ``operators``. None: the run has steps, or no part of it is stored yet.

    Raises:
        NoSuchRun: nothing is known of that rank.
        StoreError: a file of the run cannot be read.
    """
    if has_recorded_steps(Store(run.path)):
        return None
    store = Store(run.path, rank)
    began = store.records(
        "SELECT rank, restart, start_ns, end_ns FROM processes "
        "QUALIFY restart = max(restart) OVER () ORDER BY rank"
    )
    if rank is not None and not began:
        raise no_such_rank(run, rank)
    roots = [process | {"trace_id": _trace(run, process)} for process in began]
    spans = read_spans(store, roots, operators=operators)
    ranks = [_rank_trace(process, spans.get(process["rank"], [])) for process in began]
    if not any(of_rank.spans for of_rank in ranks):
        return None
    return RunTrace(
        id=run.facts.id,
        short_id=run.short_id,
        name=run.facts.name,
        restart=began[0]["restart"],
        trace_id=_trace(run, began[0]),
        ranks=ranks,
    )


def _rank_trace(process: dict[str, Any], spans: list[Span]) -> RankTrace:
    last = max((span.start_ns + span.duration_ns for span in spans), default=0)
    lived = process["end_ns"] - process["start_ns"] if process["end_ns"] else last
    return RankTrace(rank=process["rank"], duration_ns=lived, spans=spans)


def _trace(run: RunFolder, process: dict[str, Any]) -> str:
    return f"{ids.run_trace_id(run.facts.id, process['restart']):032x}"
