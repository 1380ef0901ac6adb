"""Names of a point's curve in a tracker, by group and rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf import names

if TYPE_CHECKING:
    from otel_mlperf.agent.delivery.destination import Batch
    from otel_mlperf.agent.model.scalar_item import ScalarItem

_GROUPS: Final = {
    "reading": "readings",
    "finding": "findings",
    "result": "result",
    "outcome": "run",
}


def tag_of(scalar: ScalarItem) -> str:
    """Return the name of a point's curve; trackers group by the part before the first slash."""
    group = _GROUPS.get(scalar.kind) or scalar.phase or "values"
    return "/".join((group, scalar.name, *map(str, scalar.labels.values())))


def rank_of(scalar: ScalarItem, batch: Batch) -> str:
    """Return ``rank0`` and so on; for a point of the node its host name."""
    if scalar.rank is None:
        return str(batch.resource.get(names.HOST_NAME, "node"))
    return f"rank{scalar.rank}"


def curve_of(scalar: ScalarItem, batch: Batch, *, is_alone: bool) -> str:
    """Return the curve's name in a run that contains all ranks.

    It includes the rank, unless the run has a single rank.
    """
    tag = tag_of(scalar)
    return tag if is_alone else f"{tag}/{rank_of(scalar, batch)}"
