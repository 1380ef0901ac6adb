"""One sampled request with its spans: the slowest, or the request with a given id or number."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names
from otel_mlperf.analysis.steps.step_records import read_spans
from otel_mlperf.analysis.steps.step_shapes import RequestTrace
from otel_mlperf.errors import NoSuchRequest
from otel_mlperf.store.table_reader import Store

if TYPE_CHECKING:
    from otel_mlperf.store.run_folders import RunFolder

_REQUESTS: Final = """SELECT rank, restart, trace_id, name, start_ns, end_ns, status, kept,
attributes, row_number() OVER (ORDER BY start_ns, rank, span_id) AS number
FROM spans WHERE category = $category AND span_id = root_id AND ($rank IS NULL OR rank = $rank)
ORDER BY number"""
_FAILED: Final = "error"
_MAX_LISTED: Final = 10


def read_request(
    run: RunFolder, wanted: str | None = None, rank: int | None = None, *, operators: bool = True
) -> RequestTrace:
    """Return a request with sampled spans, including everything nested in the request.

    Args:
        run: the run.
        wanted: the id that the user's program assigned, or the number among the sampled requests
            (from 1, by start time); None: the slowest request.
        rank: only requests of this rank are considered; None: requests of all ranks.
        operators: whether to include the profiler's operators under each section.

    Raises:
        NoSuchRequest: no spans of such a request were sampled.
        StoreError: a file of the run cannot be read.
    """
    store = Store(run.path)
    rows = store.records(_REQUESTS, category=names.REQUEST, rank=rank)
    chosen = _choose(rows, wanted)
    if chosen is None:
        raise NoSuchRequest(_missing(run, rows, wanted))
    spans = read_spans(store, [chosen], operators=operators)
    return RequestTrace(
        id=run.facts.id,
        short_id=run.short_id,
        name=chosen["name"],
        request_id=_id_of(chosen),
        number=chosen["number"],
        kept_requests=len(rows),
        trace_id=chosen["trace_id"],
        rank=chosen["rank"],
        restart=chosen["restart"],
        started_ns=chosen["start_ns"],
        duration_ns=chosen["end_ns"] - chosen["start_ns"],
        is_error=chosen["status"] == _FAILED,
        kept=chosen["kept"],
        chosen=wanted is None,
        spans=spans.get(chosen["rank"], []),
    )


def _choose(rows: list[dict[str, Any]], wanted: str | None) -> dict[str, Any] | None:
    if wanted is None:
        return max(rows, key=lambda row: row["end_ns"] - row["start_ns"], default=None)
    by_id = [row for row in rows if _id_of(row) == wanted]
    by_number = [row for row in rows if str(row["number"]) == wanted]
    return next(iter([*by_id, *by_number]), None)


def _id_of(row: dict[str, Any]) -> str | None:
    given = json.loads(row["attributes"] or "{}").get(names.REQUEST_ID)
    return None if given is None else str(given)


def _missing(run: RunFolder, rows: list[dict[str, Any]], wanted: str | None) -> str:
    tried = "looking for a request" if wanted is None else f"looking for request {wanted!r}"
    tried += f" of run {run.short_id}"
    if not rows:
        return f"{tried}: no spans of requests are stored; see otel-mlperf summary {run.short_id}"
    ids = [one for row in rows if (one := _id_of(row)) is not None]
    ids_text = (
        f", with ids {', '.join(ids[:_MAX_LISTED])}" + " …" * (len(ids) > _MAX_LISTED)
        if ids
        else ""
    )
    return (
        f"{tried}: this request was not sampled; {len(rows):,} sampled requests have "
        f"spans{ids_text}: show them with --request 1 to --request {len(rows)}"
    )
