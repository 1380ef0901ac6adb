"""How does a histogram of the program look once its cells are read, added up and sent?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from otel_mlperf.agent.model.trace_ids import run_trace
from otel_mlperf.journal.layout import BUCKETS_AT, BUCKETS_IN_CELL, HISTOGRAM_SCALE, Part
from otel_mlperf.otlp.histogram import MAX_BUCKETS, Buckets, ExplicitBuckets, ExponentialBuckets
from otel_mlperf.otlp.metric_encoding import Exemplar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mlperf.agent.derivation.cell_values import Cell
    from otel_mlperf.agent.model.agent_state import JournalState

_BOUNDS: Final = tuple(2.0**i for i in range(-10, 21))
"""Where buckets are asked for with explicit bounds: powers of two are bounds of ours too."""
_MASK: Final = (1 << 64) - 1


class Distribution(Struct):
    """The values of a histogram: counts by index of the bucket, and an example."""

    sum: float = 0.0
    zeros: int = 0
    min: float | None = None
    max: float | None = None
    counts: dict[int, int] = {}
    exemplar: Exemplar | None = None

    @property
    def count(self) -> int:
        """How many values there are."""
        return self.zeros + sum(self.counts.values())

    def plus(self, other: Distribution) -> Distribution:
        """Both together."""
        counts = dict(self.counts)
        for index, count in other.counts.items():
            counts[index] = counts.get(index, 0) + count
        least = [one for one in (self.min, other.min) if one is not None]
        most = [one for one in (self.max, other.max) if one is not None]
        examples = [one for one in (self.exemplar, other.exemplar) if one is not None]
        return Distribution(
            self.sum + other.sum,
            self.zeros + other.zeros,
            min(least, default=None),
            max(most, default=None),
            counts,
            max(examples, key=lambda one: one.time_ns, default=None),
        )

    def buckets(self, *, explicit: bool = False) -> Buckets:
        """What is sent: exponential buckets, as few as the specification asks for."""
        if explicit:
            return self._explicit()
        counts, scale = self.counts, HISTOGRAM_SCALE
        while counts and max(counts) - min(counts) >= MAX_BUCKETS:
            counts, scale = _halved(counts), scale - 1
        offset = min(counts, default=0)
        span = max(counts, default=-1) - offset + 1 if counts else 0
        return ExponentialBuckets(
            count=self.count,
            sum=self.sum,
            min=self.min,
            max=self.max,
            scale=scale,
            zero_count=self.zeros,
            offset=offset,
            counts=[counts.get(offset + i, 0) for i in range(span)],
        )

    def _explicit(self) -> ExplicitBuckets:
        counts = [0] * (len(_BOUNDS) + 1)
        counts[0] = self.zeros
        for index, count in self.counts.items():
            # A bucket ends at 2**((index + 1) / 8), and belongs where its end belongs.
            exponent = -(-(index + 1) >> HISTOGRAM_SCALE)
            counts[min(max(exponent + 10, 0), len(_BOUNDS))] += count
        return ExplicitBuckets(
            count=self.count, sum=self.sum, min=self.min, max=self.max, bounds=_BOUNDS,
            counts=counts,
        )  # fmt: skip


def distribution(cells: Sequence[Cell], journal: JournalState) -> Distribution:
    """What the cells of one histogram come to (see ``journal.layout``)."""
    found = Distribution()
    for words, floats in cells:
        part = words[7]
        if part == Part.HEAD:
            within = floats[3:5] if floats[3] <= floats[4] else (None, None)
            found.sum, found.zeros = floats[1], words[2]
            found.min, found.max = within
        elif part == Part.EXEMPLAR:
            found.exemplar = _exemplar(floats[1], words, journal)
        elif part:
            first = (part - BUCKETS_AT) * BUCKETS_IN_CELL
            for index, count in enumerate(words[1 : 1 + BUCKETS_IN_CELL], first):
                if count:
                    found.counts[index] = count
    return found


def _exemplar(value: float, words: list[int], journal: JournalState) -> Exemplar | None:
    """The example, if it was written whole and its trace is one that is kept."""
    _, bits, time_ns, span, root, check, *_ = words
    if check != (bits ^ time_ns ^ span ^ root) & _MASK:
        return None
    meta = journal.meta
    ended, opened = journal.ended.get(root), journal.roots.get(root)
    if root == meta.run_span:
        trace = run_trace(meta)
    elif ended is not None and ended.kept:
        trace = ended.root.trace
    elif opened is not None and opened.kind == "step":
        trace = opened.trace
    else:
        return None
    return Exemplar(value, meta.unix_time(time_ns), trace, span)


def _halved(counts: dict[int, int]) -> dict[int, int]:
    found: dict[int, int] = {}
    for index, count in counts.items():
        found[index >> 1] = found.get(index >> 1, 0) + count
    return found
