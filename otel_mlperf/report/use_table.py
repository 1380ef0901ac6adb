"""Terminal table of the resource use of sections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_mlperf import names
from otel_mlperf.quantities import duration, figures, plural, size
from otel_mlperf.report.place_labels import place_labels
from otel_mlperf.terminal_lines import WIDTH, Line, columns, left

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_mlperf.analysis.summary.call_figures import SectionUse

_MOST: Final = 10
_NAME: Final = 16
_LONGEST: Final = 34
_CALLS: Final = 8
_COLUMN: Final = 9


class _Column(NamedTuple):
    """Column of the table: one figure of each section."""

    title: str
    measure: names.Measure
    value: str
    """``mean`` of the calls, or ``most``: the maximum of all."""
    written: Callable[[float], str]


def _signed(count: float) -> str:
    return f"{'-' if count < 0 else '+'}{size(abs(count))}" if count else "0 B"


def _peak(count: float) -> str:
    """Format it in the same unit as the peak in the process line."""
    return size(count, 1024)


_COLUMNS: Final = (
    _Column("cpu", names.CPU_NS, "mean", duration),
    _Column("gpu time", names.GPU_NS, "mean", duration),
    _Column("memory", names.MEMORY_GROWTH, "mean", _signed),
    _Column("peak", names.MEMORY_PEAK, "most", _peak),
    _Column("gpu", names.CUDA_GROWTH, "mean", _signed),
    _Column("gpu peak", names.CUDA_PEAK, "most", _peak),
    _Column("read", names.READ_BYTES, "mean", size),
    _Column("written", names.WRITTEN_BYTES, "mean", size),
    _Column("waits", names.SWITCHES, "mean", figures),
    _Column("lost cpu", names.INVOLUNTARY_SWITCHES, "mean", figures),
)
"""Columns; the first ones take precedence in a narrow terminal."""


def use_lines(uses: list[SectionUse], width: int) -> list[Line]:
    """Return a line per measured section: the mean of a call, and the highest peak."""
    if not uses:
        return []
    told = [column for column in _COLUMNS if any(column.measure.key in use.figures for use in uses)]
    labels = place_labels(uses[:_MOST])
    longest = max(_NAME, *map(columns, labels))
    told = told[: (width - 2 - _NAME - _CALLS) // _COLUMN]
    room = width - 2 - _CALLS - _COLUMN * len(told)
    name = max(_NAME, min(longest, room, _LONGEST + (width - WIDTH) // 2))
    titles = "".join(f"{column.title:>{_COLUMN}}" for column in told)
    lines: list[Line] = [[(f"  {left('a call used', name)}{'calls':>{_CALLS}}{titles}", "dim")]]
    for label, use in zip(labels, uses, strict=False):
        cells = "".join(f"{_cell(use, column):>{_COLUMN}}" for column in told)
        lines.append([(f"  {left(label, name)}{use.calls:>{_CALLS},}{cells}", "")])
    if rest := len(uses) - _MOST:
        more = f"  {plural(rest, 'other')}: summary --json has all of them"
        lines += [[(more, "dim")]] if rest > 0 else []
    return lines


def _cell(use: SectionUse, column: _Column) -> str:
    figure = use.figures.get(column.measure.key)
    return "–" if figure is None else column.written(getattr(figure, column.value))


def used_words(attributes: Mapping[str, Any]) -> list[str]:
    """Return the resource use of one span: ``cpu 12.1 ms``, ``memory +3.20 MB`` and so on."""
    told = (
        ("cpu", names.CPU_NS, duration),
        ("gpu time", names.GPU_NS, duration),
        ("memory", names.MEMORY_GROWTH, _signed),
        ("peak", names.MEMORY_PEAK, _peak),
        ("gpu memory", names.CUDA_GROWTH, _signed),
        ("gpu peak", names.CUDA_PEAK, _peak),
        ("read", names.READ_BYTES, size),
        ("written", names.WRITTEN_BYTES, size),
        ("waits", names.SWITCHES, str),
        ("lost cpu", names.INVOLUNTARY_SWITCHES, str),
    )
    return [
        f"{word} {written(value)}"
        for word, measure, written in told
        if (value := attributes.get(measure.attribute)) is not None
    ]
