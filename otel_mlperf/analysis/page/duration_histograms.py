"""Histograms of durations: of steps, and of calls of the sections with most time.

Bars are equally wide in the logarithm of the duration, so that a few long calls do not compress the
other bars. The histograms include the same steps as the summary's figures, on all ranks.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import msgspec

from otel_mlperf.analysis.steps.step_shares import CHOSEN
from otel_mlperf.analysis.summary.call_totals import read_call_buckets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_mlperf.analysis.steps.step_shapes import StepFigures
    from otel_mlperf.store.table_reader import Store

STEP: Final = "step"
_MAX_BARS: Final = 40
_MAX_SECTIONS: Final = 8
_MIN_DURATIONS: Final = 10
_STEP_SCALE: Final = 8
"""Resolution of step buckets: 2 ** 8 buckets per doubling, as in exported histograms."""
_STEPS: Final = f"""{CHOSEN} SELECT floor(log2(greatest(duration_ns, 1) / 1e9) * $buckets)::BIGINT,
    count(*) FROM chosen GROUP BY 1"""


class DurationHistogram(msgspec.Struct, frozen=True, kw_only=True):
    """Histogram of durations: edges and counts."""

    name: str
    """Displayed name of the section, or ``step``."""
    place: str
    """Place of the calls: phase of the steps, or path outside steps."""
    in_step: bool
    edges_ns: list[float]
    """Edges of the bars: one more than there are bars."""
    counts: list[int]


def read_histograms(
    store: Store, steps: StepFigures | None, *, has_warm_up: bool
) -> list[DurationHistogram]:
    """Return histograms of the steps, then of the sections with most time.

    Steps and sections with too few durations have no histogram. The first step is excluded if
    ``has_warm_up``. Without ``steps``, only histograms of sections are returned.
    """
    found = []
    if steps is not None:
        values: dict[str, Any] = {"phase": steps.phase, "first": 1 if has_warm_up else 0}
        rows = store.rows(_STEPS, buckets=2**_STEP_SCALE, **values)
        found.append(_histogram(STEP, steps.phase, _STEP_SCALE, dict(rows), in_step=False))
    for call, buckets in read_call_buckets(store)[:_MAX_SECTIONS]:
        counts = dict(enumerate(buckets.counts, buckets.offset))
        place = call.phase if call.in_step else call.path
        found.append(_histogram(call.name, place, buckets.scale, counts, in_step=call.in_step))
    return [one for one in found if sum(one.counts) >= _MIN_DURATIONS]


def _histogram(
    name: str, place: str, scale: int, by_index: Mapping[int, int], *, in_step: bool
) -> DurationHistogram:
    filled = [index for index, count in by_index.items() if count]
    low, high = min(filled, default=0), max(filled, default=0)
    halvings = 0
    while (high >> halvings) - (low >> halvings) >= _MAX_BARS:
        halvings += 1
    first, last = low >> halvings, high >> halvings
    counts = [0] * (last - first + 1)
    for index in filled:
        counts[(index >> halvings) - first] += by_index[index]
    width = 2.0 ** (halvings - scale)
    edges = [math.exp2(at * width) * 1e9 for at in range(first, last + 2)]
    return DurationHistogram(name=name, place=place, in_step=in_step, edges_ns=edges, counts=counts)
