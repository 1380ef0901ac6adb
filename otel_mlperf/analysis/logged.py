"""What did the program itself say: the last value of each name, the totals of its counters?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_mlperf import names

if TYPE_CHECKING:
    from otel_mlperf.store.reader import Store


def read_last(store: Store) -> dict[str, float]:
    """The last value given to ``log()`` by name, in the order in which the names came up."""
    found = store.rows(
        "SELECT name, arg_max(value, time_ns) FROM values GROUP BY name ORDER BY min(time_ns), name"
    )
    return dict(found)


def read_counted(store: Store) -> dict[str, float]:
    """The program's own counters by name, as they stood last, all ranks together."""
    before = names.user_metric("")
    found = store.rows(
        "SELECT name, sum(last) FROM (SELECT name, arg_max(value, time_ns) AS last FROM readings "
        "WHERE starts_with(name, $before) GROUP BY name, rank, restart, labels) "
        "GROUP BY name ORDER BY name",
        before=before,
    )
    return {name.removeprefix(before): total for name, total in found}
