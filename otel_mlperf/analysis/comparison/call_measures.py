"""Times of sections outside steps, by call: what is compared of runs and code without steps.

Calls are taken as independent. Where the run was long enough for its agent to store them in eight
pieces or more, the error of the mean is at least that of the means of these pieces: a slow moment
of the machine lasts for several calls. There is no order of single calls, so the usual time is the
mean.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.analysis.comparison.comparison_shapes import TimeMeasures
from otel_mlperf.analysis.steps.estimates import FEWEST_BLOCKS, Estimate
from otel_mlperf.analysis.summary.call_durations import read_calls_by_name

if TYPE_CHECKING:
    from otel_mlperf.analysis.summary.call_shapes import CallFigures
    from otel_mlperf.store.table_reader import Store

_LEFT_OUT: Final = (names.RUN, names.GARBAGE_COLLECTION, names.PROFILER)
"""Categories that are no work of the program."""
_PIECES: Final = """SELECT name, count, sum_ns FROM durations
WHERE NOT in_step AND NOT list_contains($left_out, category)"""


def read_call_measures(store: Store) -> list[TimeMeasures]:
    """Return the sections outside steps, all places of a name together, most time first."""
    pieces: dict[str, list[tuple[int, int]]] = {}
    for name, count, total in store.rows(_PIECES, left_out=_LEFT_OUT):
        pieces.setdefault(name, []).append((int(count), int(total)))
    return [
        _measures(figures, pieces[name])
        for name, figures in read_calls_by_name(store, _LEFT_OUT).items()
    ]


def _measures(calls: CallFigures, pieces: list[tuple[int, int]]) -> TimeMeasures:
    mean = _estimate(calls, pieces)
    return TimeMeasures(
        name=calls.name,
        category=calls.category,
        steps=calls.count,
        usual_ns=mean,
        mean_ns=mean,
        p50_ns=calls.p50_ns,
        p95_ns=calls.p95_ns,
        max_ns=float(calls.max_ns),
    )


def _estimate(calls: CallFigures, pieces: list[tuple[int, int]]) -> Estimate:
    count, mean = calls.count, calls.mean_ns
    if count < 2:
        return Estimate(mean, None, 1.0)
    error, blocks = calls.deviation_ns / math.sqrt(count - 1), float(count)
    if len(pieces) >= FEWEST_BLOCKS:
        squares = sum((total - mean * of) ** 2 for of, total in pieces)
        of_pieces = math.sqrt(squares * len(pieces) / (len(pieces) - 1)) / count
        if of_pieces > error:
            error, blocks = of_pieces, float(len(pieces))
    return Estimate(mean, error, blocks)
