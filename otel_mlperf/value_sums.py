"""Sums of values: count, total, extremes and spread, merged without the values themselves."""

from __future__ import annotations

import msgspec


class ValueSums(msgspec.Struct, frozen=True, gc=False):
    """Sums of the values of one group."""

    count: int
    total: int
    least: int
    most: int
    spread: float
    """Sum of the squared distances from the group's own mean: sums of squares of nanoseconds would
    lose the differences."""

    @property
    def mean(self) -> float:
        """Return the mean of at least one value."""
        return self.total / self.count

    @property
    def variance(self) -> float:
        """Return the mean squared distance from the mean, of at least one value."""
        return self.spread / self.count

    def merged(self, other: ValueSums) -> ValueSums:
        """Return the sums of both groups, as if their values had come one by one."""
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
