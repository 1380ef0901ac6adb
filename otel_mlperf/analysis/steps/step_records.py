"""Table rows of one step: sections, GPU times, marks and spans, on all ranks at once.

One query covers all ranks, because a run can have thousands of ranks. Only profiler events are
queried rank by rank, because few ranks have events, and each of these can have many.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf.analysis.profiles.section_operators import read_operators
from otel_mlperf.analysis.steps.span_tree import draw_tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from otel_mlperf.analysis.steps.step_shapes import Span
    from otel_mlperf.store.table_reader import Store

_OF_STEP: Final = "restart = $restart AND phase = $phase AND n = $n AND list_contains($ranks, rank)"
_SECTIONS: Final = f"""SELECT rank, name, sum(count)::BIGINT, sum(sum_ns)::BIGINT,
sum(self_ns)::BIGINT, beside, aggregate, parent, path <> '' AS is_part, min(min_ns), max(max_ns)
FROM sections WHERE {_OF_STEP} GROUP BY rank, name, beside, aggregate, parent, is_part
ORDER BY rank, beside, min(start_ns), aggregate"""
_GPU: Final = f"""SELECT rank, gpu_ns, idle_ns, host_paced_ns * 2 > gpu_ns,
device_paced_ns * 2 > gpu_ns FROM gpu_steps WHERE {_OF_STEP}"""
_EACH: Final = """each AS (SELECT unnest($ranks) AS rank, unnest($starts) AS begin_ns,
unnest($ends) AS finish_ns)"""
_MARKS: Final = f"""WITH {_EACH} SELECT rank, name, time_ns - begin_ns
FROM marks JOIN each USING (rank) WHERE restart = $restart AND phase = $phase
AND time_ns BETWEEN begin_ns AND finish_ns
QUALIFY row_number() OVER (PARTITION BY rank ORDER BY time_ns) <= $most ORDER BY rank, time_ns"""
_OUTSIDE: Final = f"""WITH {_EACH}, own AS (
    SELECT rank, track FROM spans
    WHERE trace_id = $trace AND restart = $restart AND span_id = root_id
), inside AS (
    SELECT rank, name, span_id, parent_id, start_ns, end_ns FROM spans JOIN each USING (rank)
    WHERE restart = $restart AND trace_id <> $trace AND kind = 'section'
    AND start_ns >= begin_ns AND end_ns <= finish_ns
    AND (rank, track) IN (SELECT (rank, track) FROM own)
)
SELECT rank, name FROM inside
WHERE (rank, parent_id) NOT IN (SELECT (rank, span_id) FROM inside)
GROUP BY rank, name ORDER BY rank, sum(end_ns - start_ns) DESC, name"""
_SPANS: Final = """SELECT * FROM spans WHERE trace_id = $trace AND restart = $restart
AND list_contains($ranks, rank) AND kind NOT IN ('event', 'event_rollup')
ORDER BY rank, start_ns, end_ns DESC"""  # excludes events: they are rolled up by name
_PROFILED: Final = """SELECT DISTINCT rank FROM spans WHERE trace_id = $trace
AND restart = $restart AND list_contains($ranks, rank) AND kind = 'event'"""
_MAX_MARKS: Final = 100
_Row = dict[str, Any]


class StepRows:
    """Rows of one step on some ranks; all ranks have the same restart, phase and n."""

    def __init__(self, store: Store, steps: list[_Row]) -> None:
        self._store, self._steps = store, steps
        self._key = {name: steps[0][name] for name in ("restart", "phase", "n")}
        self._ranks = [step["rank"] for step in steps]
        self.sections = self._by_rank(_SECTIONS, **self._key, ranks=self._ranks)
        self.gpu = self._by_rank(_GPU, **self._key, ranks=self._ranks)
        when = {"restart": steps[0]["restart"], "phase": steps[0]["phase"], "most": _MAX_MARKS}
        self.marks = self._by_rank(_MARKS, **when, **_extents(steps))

    def outside(self, ranks: Iterable[int]) -> Mapping[int, list[tuple[Any, ...]]]:
        """Return by rank the names of spans within the step that belong to other traces.

        Only the outermost spans on the step's own thread are included, those with most time first.
        """
        chosen = set(ranks)
        steps = [step for step in self._steps if step["rank"] in chosen]
        if not steps:
            return {}
        first = self._steps[0]
        return self._by_rank(
            _OUTSIDE, trace=first["trace_id"], restart=first["restart"], **_extents(steps)
        )

    def _by_rank(self, sql: str, **values: Any) -> Mapping[int, list[tuple[Any, ...]]]:
        found: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
        for rank, *row in self._store.rows(sql, **values):
            found[rank].append(tuple(row))
        return found


def _extents(steps: list[_Row]) -> dict[str, list[int]]:
    return {
        "ranks": [step["rank"] for step in steps],
        "starts": [step["start_ns"] for step in steps],
        "ends": [step["end_ns"] for step in steps],
    }


def read_spans(store: Store, roots: list[_Row], *, operators: bool) -> dict[int, list[Span]]:
    """Return the sampled spans of one trace by rank, parents before children.

    Args:
        store: tables of the run.
        roots: for each rank: trace id, rank, restart, and the start to which times are relative.
            Trace and restart must be the same for all ranks.
        operators: whether to include the profiler's operators under each span.
    """
    if not roots:
        return {}
    which: _Row = {"trace": roots[0]["trace_id"], "restart": roots[0]["restart"]}
    which["ranks"] = [root["rank"] for root in roots]
    rows: dict[int, list[_Row]] = defaultdict(list)
    for row in store.records(_SPANS, **which):
        rows[row["rank"]].append(row)
    profiled = {rank for (rank,) in store.rows(_PROFILED, **which)} if operators else set()
    return {
        rank: draw_tree(
            rows[rank],
            read_operators(store, root, rows[rank]) if rank in profiled else {},
            root["start_ns"],
        )
        for root in roots
        if (rank := root["rank"]) in rows
    }
