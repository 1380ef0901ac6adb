"""Names of tracker curves, points grouped by step and time, and JSON-safe values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from otel_mlperf import names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_mlperf.agent.delivery.destination import Batch
    from otel_mlperf.agent.model.scalar_item import ScalarItem

_GROUPS: Final = {
    "reading": "readings",
    "finding": "findings",
    "result": "result",
    "outcome": "run",
}
Row = tuple[int, int, dict[str, float]]
"""Step number, Unix time in ns, and the values at that time by curve name."""
Named = tuple[str, "ScalarItem"]
"""Name of a curve, and one of its points."""


def tag_of(scalar: ScalarItem) -> str:
    """Return the name of a point's curve. Trackers group curves by the part before the "/"."""
    group = _GROUPS.get(scalar.kind) or scalar.phase or "values"
    return "/".join((group, scalar.name, *map(str, scalar.labels.values())))


def rank_of(scalar: ScalarItem, batch: Batch) -> str:
    """Return the owner of a point: ``rank<number>``, or the host name for a point of the node."""
    if scalar.rank is None:
        return str(batch.resource.get(names.HOST_NAME, "node"))
    return f"rank{scalar.rank}"


def curve_of(scalar: ScalarItem, batch: Batch, *, is_alone: bool) -> str:
    """Return the name of a point's curve in a tracker run that contains all ranks.

    The name ends with the rank, unless the run has a single rank (``is_alone``).
    """
    tag = tag_of(scalar)
    return tag if is_alone else f"{tag}/{rank_of(scalar, batch)}"


def rows_of(named: Iterable[Named]) -> list[Row]:
    """Group points with the same step and time into rows with at most one value per curve."""
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
    """Return ``value`` if finite, else its name in Protobuf JSON, for example "NaN"."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
