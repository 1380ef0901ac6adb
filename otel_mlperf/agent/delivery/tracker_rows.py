"""Rows of points with the same step and time, and JSON-safe values of points."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_mlperf.agent.model.scalar_item import ScalarItem

Row = tuple[int, int, dict[str, float]]
"""A step's number, a time, and the values at that time by curve."""
Named = tuple[str, "ScalarItem"]
"""The name of a point's curve, and the point."""


def rows_of(named: Iterable[Named]) -> list[Row]:
    """Group points of one step and one moment as rows; a curve has one value in each row."""
    rows: list[Row] = []
    newest: dict[tuple[int, int], dict[str, float]] = {}
    for name, scalar in named:
        place = scalar.number or 0, scalar.time_ns
        values = newest.get(place)
        if values is None or name in values:
            values = newest[place] = {}
            rows.append((*place, values))
        values[name] = scalar.value
    return rows


def json_safe_number(value: float) -> float | str:
    """Return the value, or its name in Protobuf's JSON, which MLflow and trackio read."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
