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
    """The name of its curve: trackers group by what is before the first slash."""
    group = _GROUPS.get(scalar.kind) or scalar.phase or "values"
    return "/".join((group, scalar.name, *map(str, scalar.labels.values())))


def rank_of(scalar: ScalarItem, batch: Batch) -> str:
    """``rank0``; of the node its name, which says whose readings they are."""
    if scalar.rank is None:
        return str(batch.resource.get(names.HOST_NAME, "node"))
    return f"rank{scalar.rank}"


def curve_of(scalar: ScalarItem, batch: Batch, *, is_alone: bool) -> str:
    """Where all ranks are in one run, its name says whose it is, unless it has one rank alone."""
    tag = tag_of(scalar)
    return tag if is_alone else f"{tag}/{rank_of(scalar, batch)}"
