"""Mergeable statistics of values: count, total, minimum, maximum and spread."""

from __future__ import annotations

import msgspec


class ValueSums(msgspec.Struct, frozen=True, gc=False):
    """Statistics of the values of one group, which can be merged with those of another group."""

    count: int
    total: int
    least: int
    most: int
    spread: float
    """Sum of the squared deviations from the group's mean. A sum of squares would lose precision
    for values in nanoseconds."""

    @property
    def mean(self) -> float:
        """Return the mean; the group must have at least one value."""
        return self.total / self.count

    @property
    def variance(self) -> float:
        """Return the population variance; the group must have at least one value."""
        return self.spread / self.count

    def merged(self, other: ValueSums) -> ValueSums:
        """Return the statistics of the union of both groups."""
        if not self.count or not other.count:
            return self if self.count else other
        apart = self.mean - other.mean
        weight = self.count * other.count / (self.count + other.count)
        return ValueSums(
            count=self.count + other.count,
            total=self.total + other.total,
            least=min(self.least, other.least),
            most=max(self.most, other.most),
            spread=self.spread + other.spread + apart * apart * weight,
        )
