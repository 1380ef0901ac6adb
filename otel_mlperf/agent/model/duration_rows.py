"""How long did the calls of each section take: a histogram and exact sums, until it is written?"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from otel_mlperf.otlp.histogram import ExponentialBuckets

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Calls:
    """The calls of a section at one place."""

    __slots__ = ("buckets", "errors", "least", "most", "spread", "total", "within")

    def __init__(self) -> None:
        self.buckets = ExponentialBuckets()
        self.errors = self.within = self.total = self.least = self.most = 0
        self.spread = 0.0

    def add(self, durations_ns: NDArray[np.int64], errors: int, within: int) -> None:
        """More of them, at least one."""
        before, count = self.buckets.count, len(durations_ns)
        total, least, most = (
            int(f()) for f in (durations_ns.sum, durations_ns.min, durations_ns.max)
        )
        mean = total / count
        # About the mean: squares of nanoseconds leave nothing of what differs.
        self.spread += float(((durations_ns - mean) ** 2).sum())
        if before:
            self.spread += before * count / (before + count) * (self.total / before - mean) ** 2
        self.least = min(self.least, least) if before else least
        self.most = max(self.most, most)
        self.total += total
        self.errors += errors
        self.within += within
        self.buckets.record(durations_ns / 1e9)

    def as_row(self) -> dict[str, Any]:
        """What table ``durations`` has of it beside its place."""
        buckets = self.buckets
        return {
            "count": buckets.count,
            "errors": self.errors,
            "within": self.within,
            "sum_ns": self.total,
            "min_ns": self.least,
            "max_ns": self.most,
            "spread": self.spread,
            "scale": buckets.scale,
            "zeros": buckets.zero_count,
            "first_bucket": buckets.offset,
            "counts": json.dumps(buckets.counts, separators=(",", ":")),
        }


class DurationRows:
    """Rows of table ``durations``: one for each section and place."""

    def __init__(self) -> None:
        self._rows: dict[tuple[Any, ...], tuple[dict[str, Any], Calls]] = {}

    @property
    def waiting(self) -> int:
        """How many rows wait."""
        return len(self._rows)

    def add(
        self, place: dict[str, Any], durations_ns: NDArray[np.int64], errors: int, within: int
    ) -> None:
        """Calls that ended: where they were, how long each took, and how many of them failed."""
        _, calls = self._rows.setdefault(tuple(place.values()), (place, Calls()))
        calls.add(durations_ns, errors, within)

    def rows(self) -> list[dict[str, Any]]:
        """All of them."""
        return [place | calls.as_row() for place, calls in self._rows.values()]
