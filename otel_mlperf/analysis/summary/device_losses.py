"""Which devices stopped answering during a run, and did they come back?"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from otel_mlperf import names
from otel_mlperf.analysis.summary.summary_shapes import Loss

if TYPE_CHECKING:
    from otel_mlperf.store.table_reader import Store


def read_losses(store: Store, started_ns: int) -> list[Loss]:
    """One for each device that was lost, in the order of the first time."""
    rows = store.rows(
        "SELECT rank, name, start_ns, attributes FROM spans WHERE category = $category "
        "ORDER BY start_ns",
        category=names.DEVICE,
    )
    of_device: dict[str, list[tuple[int, str, int, dict[str, Any]]]] = {}
    for rank, name, time_ns, text in rows:
        attributes = json.loads(text)
        moment = (rank, name, time_ns, attributes)
        of_device.setdefault(attributes[names.HW_ID], []).append(moment)
    found = (_loss(device, moments, started_ns) for device, moments in of_device.items())
    return [loss for loss in found if loss is not None]


def _loss(
    device: str, moments: list[tuple[int, str, int, dict[str, Any]]], started_ns: int
) -> Loss | None:
    lost = [moment for moment in moments if moment[1] == names.SPAN_DEVICE_LOST]
    if not lost:
        return None
    rank, _, first_ns, attributes = lost[0]
    last_ns = lost[-1][2]
    back = (time_ns for _, name, time_ns, _ in moments if name == names.SPAN_DEVICE_BACK)
    return Loss(
        id=device,
        name=attributes.get(names.HW_NAME, ""),
        rank=rank,
        count=len(lost),
        after_ns=max(0, first_ns - started_ns),
        absent_ns=next((time_ns - last_ns for time_ns in back if time_ns >= last_ns), None),
        text=attributes.get(names.EXCEPTION_MESSAGE, ""),
    )
