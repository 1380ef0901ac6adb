"""What did the program tell of itself, on as many lines as that takes?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_mlperf.analysis.summary.logged import GAUGE
from otel_mlperf.report.lines import LABEL, Line, labelled_lines, short, wrapped

if TYPE_CHECKING:
    from otel_mlperf.analysis.summary.summary_shapes import ProgramSeries, Summary

_MOST_SAID = 8
"""Lines under one label."""
_WHOLE = 1e12
"""Below it, a number without decimals is written with all its digits."""


def said_lines(summary: Summary, width: int) -> list[Line]:
    """What the program told of itself, each on as many lines as it needs."""
    room, lines = width - LABEL, []
    for label, facts in (
        ("params", summary.params),
        ("last", summary.last),
        ("counted", summary.counted),
        ("gauges", _gauges(summary.series)),
        ("result", summary.result),
    ):
        told = [short(f"{key} {_value(value)}", room) for key, value in facts.items()]
        between = ", " if label == "result" else " · "
        found = wrapped("", told, room, between) if told else []
        if len(found) > _MOST_SAID:
            found = [*found[: _MOST_SAID - 1], "… summary --json has all of it"]
        lines += labelled_lines(label, found)
    return lines


def _gauges(series: list[ProgramSeries]) -> dict[str, float]:
    """The gauges as they were set last, by name and labels."""
    return {
        f"{one.name} ({', '.join(one.labels.values())})" if one.labels else one.name: one.value
        for one in series
        if one.kind == GAUGE
    }


def _value(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if value.is_integer() and abs(value) < _WHOLE else f"{value:.4g}"
