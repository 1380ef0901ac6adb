"""How do the requests of a running job look on a terminal?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf.report.lines import Line, columns, left
from otel_mlperf.report.quantities import duration, plural, rate

if TYPE_CHECKING:
    from otel_mlperf.analysis.live.live_requests import RequestsNow

_MOST: Final = 4
_NAME: Final = 12
_FIXED: Final = 67


def live_request_lines(requests: list[RequestsNow], width: int) -> list[Line]:
    """A line for each name: what is open now, and what ended within the last minute."""
    if not requests:
        return []
    told = requests[:_MOST]
    name = max(_NAME, min(width - _FIXED, max(columns(one.name) for one in told)))
    title = f"{left('requests', name)}{'open':>6}{'oldest':>9}{'a second':>10}{'failed':>8}"
    title += "".join(f"{column:>8}" for column in ("p50", "p95", "p99", "max"))
    lines: list[Line] = [[(title, "dim")]]
    lines += [[(_row(one, name), "")] for one in told]
    if rest := requests[_MOST:]:
        lines.append([(f"and {plural(len(rest), 'more name')}: top --json has all", "dim")])
    return lines


def _row(one: RequestsNow, name: int) -> str:
    oldest = duration(one.oldest_ns) if one.oldest_ns is not None else ""
    speed = rate(one.per_s) if one.per_s is not None else ""
    row = f"{left(one.name, name)}{one.open:>6,}{oldest:>9}{speed:>10}{one.failed:>8,}"
    took = (one.p50_ns, one.p95_ns, one.p99_ns, one.max_ns)
    return row + "".join(f"{'–' if ns is None else duration(ns):>8}" for ns in took)
