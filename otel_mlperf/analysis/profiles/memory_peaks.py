"""What ran when most memory was given out in the profiler windows of a run?

The operator and the section that had begun last, on any thread, and were not over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from otel_mlperf.store.table_reader import Store

_PEAKS: Final = """SELECT rank, restart, device_type, device, time_ns FROM allocator
WHERE peak_bytes IS NOT NULL QUALIFY row_number() OVER (
    PARTITION BY rank, device_type, device ORDER BY peak_bytes DESC, time_ns) = 1"""
_RAN: Final = """SELECT name FROM spans WHERE rank = $rank AND restart = $restart
AND kind = $kind AND ($category = '' OR category = $category)
AND start_ns <= $at AND end_ns >= $at ORDER BY start_ns DESC, end_ns LIMIT 1"""
_WHAT: Final = {"operator": ("event", "operator"), "section": ("section", "")}


def read_peaks(store: Store) -> list[dict[str, Any]]:
    """Of each device of each rank: when, in which operator and section; empty: in none."""
    peaks = store.records(_PEAKS)
    for peak in peaks:
        about = {"rank": peak["rank"], "restart": peak["restart"], "at": peak["time_ns"]}
        for what, (kind, category) in _WHAT.items():
            found = store.rows(_RAN, **about, kind=kind, category=category)
            peak[what] = found[0][0] if found else ""
    return peaks
