"""Totals and bus bandwidth of collective operations, derived from their kernels.

Bus bandwidth is bus bytes (``Collective.bus_bytes``) / time, over the kernels whose size the trace
records. It is a lower bound of the bandwidth of the links, because the time of a kernel includes
waiting for other ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from otel_mlperf.kineto.linking.linked_events import Role, find_roles
from otel_mlperf.store.window_facts import CollectiveTotal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_mlperf.kineto.linking.collectives import Collective
    from otel_mlperf.kineto.trace_events import Trace

_Key = tuple[str, int | None]


def count_collectives(trace: Trace, known: Mapping[int, Collective]) -> list[CollectiveTotal]:
    """Return one total for each pair of operation and group size, longest total time first.

    ``known`` maps the rows of events to their collective operations. Only kernels are counted.
    """
    works = np.flatnonzero(find_roles(trace) == Role.DEVICE)
    groups: dict[_Key, list[tuple[int, Collective]]] = {}
    for row in np.intersect1d(works, np.array(list(known), np.int64)).tolist():
        collective = known[row]
        took = max(0, int(trace.events.duration_ns[row]))
        key = collective.operation, collective.group_size
        groups.setdefault(key, []).append((took, collective))
    totals = [_total(*key, kernels) for key, kernels in groups.items()]
    return sorted(totals, key=lambda total: (-total.total_ns, total.operation))


def _total(
    operation: str, group_size: int | None, kernels: list[tuple[int, Collective]]
) -> CollectiveTotal:
    sizes = [collective.message_bytes for _, collective in kernels]
    moved = [
        (took, collective.bus_bytes)
        for took, collective in kernels
        if collective.bus_bytes is not None
    ]
    return CollectiveTotal(
        operation=operation,
        group_size=group_size,
        calls=len(kernels),
        total_ns=sum(took for took, _ in kernels),
        bytes=sum(size for size in sizes if size is not None),
        bus_bytes=sum(size for _, size in moved),
        bus_ns=sum(took for took, _ in moved),
    )
