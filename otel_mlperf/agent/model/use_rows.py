"""What do the calls of each section add up to, measure by measure, until it is written?"""

from __future__ import annotations

from typing import Any, Final

_MOST: Final = (1 << 63) - 1


class _Sums:
    """One measure of all calls; exact, for whole numbers of Python have no end."""

    __slots__ = ("count", "least", "most", "squares", "total")

    def __init__(self, value: int) -> None:
        self.count = self.total = self.squares = 0
        self.least = self.most = value

    def add(self, value: int) -> None:
        self.count += 1
        self.total += value
        self.squares += value * value
        self.least, self.most = min(self.least, value), max(self.most, value)

    def as_row(self) -> dict[str, Any]:
        # About the mean: so that parts can be put together without losing what differs.
        spread = (self.squares * self.count - self.total * self.total) / self.count
        return {
            "count": self.count,
            "total": max(-_MOST, min(_MOST, self.total)),
            "least": self.least,
            "most": self.most,
            "spread": spread,
        }


class UseRows:
    """Rows of table ``resources``: one for each section, place and measure."""

    def __init__(self) -> None:
        self._rows: dict[tuple[Any, ...], tuple[dict[str, Any], dict[str, _Sums]]] = {}

    @property
    def waiting(self) -> int:
        """How many rows wait."""
        return sum(len(measures) for _, measures in self._rows.values())

    def add(self, place: dict[str, Any], use: dict[str, int]) -> None:
        """One call: where it was, and what is known of it, by measure."""
        _, measures = self._rows.setdefault(tuple(place.values()), (place, {}))
        for measure, value in use.items():
            sums = measures.get(measure)
            if sums is None:
                sums = measures[measure] = _Sums(value)
            sums.add(value)

    def rows(self) -> list[dict[str, Any]]:
        """All of them."""
        return [
            place | {"measure": measure} | sums.as_row()
            for place, measures in self._rows.values()
            for measure, sums in measures.items()
        ]
