"""How long was each section busy itself, and not in a section inside it?

Self time is a section's duration minus the union of its children on the same track (thread and
task), each clipped to the section. Children on other tracks run beside it and take nothing from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from otel_mlperf.intervals import inner_ns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.journal.ring_scan import Rows


def self_times(rows: Rows) -> NDArray[np.int64]:
    """Self time in nanoseconds of each row, in the rows' order; ``rows`` holds whole trees."""
    start = rows["start"].astype(np.int64)
    end = np.maximum(rows["end"].astype(np.int64), start)
    order = np.argsort(rows["span"])
    spans = rows["span"][order]
    at = np.minimum(np.searchsorted(spans, rows["parent"]), len(spans) - 1)
    parent = order[at]
    inside = (
        (rows["span"][parent] == rows["parent"])
        & (rows["track"][parent] == rows["track"])
        & (rows["parent"] != rows["span"])
    )
    return end - start - inner_ns(start, end, np.where(inside, parent, -1))
