"""Terminal table of the durations of section calls and requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.quantities import duration, figures, plural
from otel_mlperf.report.place_labels import place_labels
from otel_mlperf.terminal_lines import Line, columns, left

if TYPE_CHECKING:
    from otel_mlperf.analysis.summary.call_figures import CallFigures

_MOST_REQUESTS: Final = 8
_NAME: Final = 12
_CALLS: Final = 8
_COLUMN: Final = 8
_WITHIN: Final = 9
_OF_REQUESTS: Final = ("mean", "p50", "p95", "p99", "max")
_OF_ALL: Final = ("mean", "sd", "min", "p50", "p95", "p99", "max")
_FIELDS: Final = {"sd": "deviation_ns"}


def request_lines(calls: list[CallFigures], width: int) -> list[Line]:
    """Return a line per kind of request, with the share within its bound, if it has one."""
    requests = [one for one in calls if one.category == names.REQUEST]
    return _lines("a request", requests, _OF_REQUESTS, width, _MOST_REQUESTS)


def call_lines(calls: list[CallFigures], width: int) -> list[Line]:
    """Return a line per section, requests first."""
    return _lines("a call", calls, _OF_ALL, width, len(calls))


def _lines(
    title: str, calls: list[CallFigures], shown: tuple[str, ...], width: int, most: int
) -> list[Line]:
    if not calls:
        return []
    told, labels = calls[:most], _labels(calls[:most])
    has_bound = any(one.bound_s is not None for one in told)
    taken = 2 + _CALLS + _COLUMN * len(shown) + _WITHIN * has_bound
    name = max(_NAME, min(width - taken, max(map(columns, [title, *labels]))))
    head = f"  {left(title, name)}{'calls':>{_CALLS}}"
    head += "".join(f"{column:>{_COLUMN}}" for column in shown)
    lines: list[Line] = [[(head + f"{'within':>{_WITHIN}}" * has_bound, "dim")]]
    for one, label in zip(told, labels, strict=True):
        cells = "".join(f"{_written(one, column):>{_COLUMN}}" for column in shown)
        line = f"  {left(label, name)}{one.count:>{_CALLS},}{cells}"
        lines.append([(line, ""), (f"{exact_share(one):>{_WITHIN}}" * has_bound, "")])
    return [*lines, *_notes(calls, told)]


def _labels(calls: list[CallFigures]) -> list[str]:
    labels = zip(place_labels(calls), calls, strict=True)
    return [f"{label} (beside)" if one.beside else label for label, one in labels]


def _written(one: CallFigures, column: str) -> str:
    return duration(getattr(one, _FIELDS.get(column, f"{column}_ns")))


def exact_share(one: CallFigures) -> str:
    """Return the share, rounded down as for service objectives: 99.95 % is not 100 %."""
    if one.within_share is None:
        return "–"
    if one.within == one.count:
        return "100 %"
    return f"{min(one.within_share * 100, 99.99):.2f} %"


def _notes(calls: list[CallFigures], told: list[CallFigures]) -> list[Line]:
    """Return notes on the bounds, the failures, and the accuracy of quantiles."""
    bounds = {one.name: one.bound_s for one in told if one.bound_s is not None}
    words = [f"{name} within {duration(bound * 1e9)}" for name, bound in bounds.items()]
    if failed := sum(one.errors for one in told if one.category == names.REQUEST):
        words.append(f"{failed:,} failed")
    worst = max(one.error_ratio for one in told)
    words.append(f"p50, p95, p99 to within {figures(worst * 100)} %")
    if rest := len(calls) - len(told):
        words.append(f"{plural(rest, 'other')}: summary --calls")
    return [[("  " + " · ".join(words), "dim")]]
