"""How long was each section busy itself, and not in a section inside it?

Self time is a section's duration minus the union of its children on the same track (thread and
task), each clipped to the section. Children on other tracks run beside it and take nothing from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.journal.journal_reader import Rows


def self_times(rows: Rows) -> NDArray[np.int64]:
    """Self time in nanoseconds of each row, in the rows' order; ``rows`` holds whole trees."""
    start = rows["start"].astype(np.int64)
    end = np.maximum(rows["end"].astype(np.int64), start)
    result: NDArray[np.int64] = end - start
    order = np.argsort(rows["span"])
    spans = rows["span"][order]
    at = np.minimum(np.searchsorted(spans, rows["parent"]), len(spans) - 1)
    parent = order[at]
    inside = (
        (rows["span"][parent] == rows["parent"])
        & (rows["track"][parent] == rows["track"])
        & (rows["parent"] != rows["span"])
    )
    child, parent = np.flatnonzero(inside), parent[inside]
    begin = np.maximum(start[child], start[parent])
    finish = np.minimum(end[child], end[parent])
    np.subtract.at(result, parent, _covered(parent, begin, np.maximum(finish, begin)))
    return result


def _covered(
    group: NDArray[np.int64], begin: NDArray[np.int64], finish: NDArray[np.int64]
) -> NDArray[np.int64]:
    """What each interval adds to the union of the earlier ones of its group."""
    if not len(group):
        return group
    order = np.lexsort((begin, group))
    base = begin.min()
    # Groups lie one behind another on one long line, so that a running maximum never crosses.
    stride = int(finish.max() - base) + 1
    _, dense = np.unique(group[order], return_inverse=True)
    shift = dense.astype(np.int64) * stride - base
    low, high = begin[order] + shift, finish[order] + shift
    before = np.maximum.accumulate(np.concatenate(([low[0]], high[:-1])))
    before = np.maximum(before, dense.astype(np.int64) * stride)
    added: NDArray[np.int64] = np.empty_like(low)
    added[order] = np.maximum(high - np.maximum(low, before), 0)
    return added
