"""Open requests and recent request latencies, read from journals."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from otel_mlperf import names
from otel_mlperf.journal.layout import Flag, Kind
from otel_mlperf.journal.ring_scan import rows_of_kind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_mlperf.journal.journal_reader import JournalReader
    from otel_mlperf.journal.ring_scan import Rows

_RECENT_NS: Final = 60 * 10**9


class RequestsSeen(NamedTuple):
    """Requests of one name in one journal."""

    name: str
    open_ns: list[int]
    """Age of each open request."""
    took_ns: list[int]
    """Durations of requests that ended within the last minute, as far as the journal contains
    them."""
    failed: int
    since_ns: int
    """Time since the end of the first request in ``took_ns``; 0 if there is none."""


class RequestsNow(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of one name on this node."""

    name: str
    open: int
    oldest_ns: int | None
    """Age of the oldest open request."""
    count: int
    """Requests that ended within the last minute, as far as journals still contain them."""
    failed: int
    per_s: float | None
    p50_ns: int | None
    p95_ns: int | None
    p99_ns: int | None
    max_ns: int | None


def look_at_requests(
    journal: JournalReader, entries: dict[int, list[Any]], rows: Rows
) -> list[RequestsSeen]:
    """Return the requests in one journal, grouped by name.

    ``rows`` are the journal's newest rows, ``entries`` its entries by number.
    """
    now_ns = time.monotonic_ns()
    sections = rows_of_kind(rows, Kind.SECTION)
    sections = sections[sections["end"] + np.uint64(_RECENT_NS) > now_ns]
    table = journal.open_sections()
    by_name: dict[str, list[int]] = {}
    for number, content in entries.items():
        if content[0] == "section" and content[2] == names.REQUEST:
            by_name.setdefault(str(content[1]), []).append(number)
    seen = []
    for name, numbers in by_name.items():
        ended = sections[np.isin(sections["name"], numbers)]
        opened = table[np.isin(table["name"], numbers)]
        took = np.maximum(ended["end"], ended["start"]) - ended["start"]
        seen.append(
            RequestsSeen(
                name,
                [max(0, now_ns - start) for start in opened["start"].tolist()],
                took.tolist(),
                int((ended["flags"] & Flag.ERROR != 0).sum()),
                now_ns - int(ended["end"].min()) if len(ended) else 0,
            )
        )
    return seen


def requests_now(seen: Iterable[RequestsSeen]) -> list[RequestsNow]:
    """Merge the requests of all journals by name, most frequent first."""
    by_name: dict[str, list[RequestsSeen]] = {}
    for one in seen:
        by_name.setdefault(one.name, []).append(one)
    found = [_together(name, of_name) for name, of_name in by_name.items()]
    return sorted(found, key=lambda one: (-one.count, one.name))


def _together(name: str, seen: list[RequestsSeen]) -> RequestsNow:
    open_ns = [age for one in seen for age in one.open_ns]
    took = sorted(length for one in seen for length in one.took_ns)
    rates = [len(one.took_ns) / one.since_ns * 1e9 for one in seen if one.since_ns > 0]
    return RequestsNow(
        name=name,
        open=len(open_ns),
        oldest_ns=max(open_ns, default=None),
        count=len(took),
        failed=sum(one.failed for one in seen),
        per_s=sum(rates) if rates else None,
        p50_ns=_exact(took, 0.5),
        p95_ns=_exact(took, 0.95),
        p99_ns=_exact(took, 0.99),
        max_ns=took[-1] if took else None,
    )


def _exact(took: list[int], share: float) -> int | None:
    return took[math.ceil(share * len(took)) - 1] if took else None
