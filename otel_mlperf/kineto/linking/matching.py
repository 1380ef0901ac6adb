"""Of several candidates with the same key, which one is meant at a given time?

Keys are ids that should be unique and are not: correlations start again with each window of the
profiler, External ids were seen twice, and operators of one thread share sequence numbers. The one
that is meant is the last that began no later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from otel_mlperf.kineto.trace_events import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray


def last_before(
    keys: NDArray[np.int64] | NDArray[np.int32],
    times: NDArray[np.int64],
    wanted_keys: NDArray[np.int64] | NDArray[np.int32],
    wanted_times: NDArray[np.int64],
) -> NDArray[np.int64]:
    """For each wanted key and time the index of the candidate; NONE without one.

    Where all candidates of a key begin later, it is the first of them: the clocks of host and
    device may differ by more than a launch takes.
    """
    count = len(keys)
    if not count or not len(wanted_keys):
        return np.full(len(wanted_keys), NONE, np.int64)
    all_keys = np.concatenate((keys, wanted_keys))
    asks = np.arange(len(all_keys)) >= count
    order = np.lexsort((asks, np.concatenate((times, wanted_times)), all_keys))
    at = np.arange(len(order))
    is_candidate = ~asks[order]
    before = np.maximum.accumulate(np.where(is_candidate, at, NONE))
    after = np.minimum.accumulate(np.where(is_candidate, at, len(order))[::-1])[::-1]
    found = np.full(len(order), NONE, np.int64)
    for place in (after, before):  # the second overrules the first
        inside = (place >= 0) & (place < len(order))
        inside[inside] = all_keys[order[place[inside]]] == all_keys[order[inside]]
        found[order[inside]] = order[place[inside]]
    result: NDArray[np.int64] = found[count:]
    return result
