"""Terminal tables of durations and resource use of section calls and requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from otel_mlperf import names
from otel_mlperf.quantities import duration, figures, plural, size
from otel_mlperf.terminal_lines import WIDTH, Line, columns, left

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_mlperf.analysis.summary.call_shapes import CallFigures, SectionUse


class Placed(Protocol):
    """Figures of a section at one place: a path outside steps, or the steps of a phase."""

    @property
    def name(self) -> str:
        """Name of the section as shown in the summary."""

    @property
    def path(self) -> str:
        """Names of all enclosing sections and this section, joined by ``/``; empty if in steps."""

    @property
    def phase(self) -> str:
        """Phase of the steps that contain the section; empty if the section is outside steps."""


def place_labels(places: Sequence[Placed]) -> list[str]:
    """Return the sections' names, made unique where several sections have the same name.

    A repeated name becomes the section's path if it is outside steps, else ``phase/name``.
    """
    phases: dict[str, set[str]] = {}
    for one in places:
        phases.setdefault(one.name, set()).add(one.phase)
    known = [one.name for one in places]
    return [
        _label(one, phases[one.name]) if known.count(one.name) > 1 else one.name for one in places
    ]


def _label(one: Placed, phases: set[str]) -> str:
    # The phase comes first, so that it still distinguishes names of which the end is cut.
    in_phase = f"{one.phase}/{one.name}" if one.phase and len(phases) > 1 else one.name
    return one.path or in_phase


_MAX_REQUESTS: Final = 8
_CALLS: Final = 8
_CALLS_NAME: Final = 12
_CALLS_COLUMN: Final = 8
_WITHIN: Final = 9
_OF_REQUESTS: Final = ("mean", "p50", "p95", "p99", "max")
_OF_ALL: Final = ("mean", "sd", "min", "p50", "p95", "p99", "max")
_FIELDS: Final = {"sd": "deviation_ns"}


def request_lines(calls: list[CallFigures], width: int) -> list[Line]:
    """Return a line per kind of request: durations, and the share that met the time bound."""
    requests = [one for one in calls if one.category == names.REQUEST]
    return _lines("request", requests, _OF_REQUESTS, width, _MAX_REQUESTS)


def call_lines(calls: list[CallFigures], width: int) -> list[Line]:
    """Return a line per section with the durations of its calls."""
    return _lines("section", calls, _OF_ALL, width, len(calls))


def _lines(
    title: str, calls: list[CallFigures], shown: tuple[str, ...], width: int, max_rows: int
) -> list[Line]:
    if not calls:
        return []
    listed, labels = calls[:max_rows], _labels(calls[:max_rows])
    has_bound = any(one.bound_s is not None for one in listed)
    taken = 2 + _CALLS + _CALLS_COLUMN * len(shown) + _WITHIN * has_bound
    name = max(_CALLS_NAME, min(width - taken, max(map(columns, [title, *labels]))))
    head = f"  {left(title, name)}{'calls':>{_CALLS}}"
    head += "".join(f"{column:>{_CALLS_COLUMN}}" for column in shown)
    lines: list[Line] = [[(head + f"{'within':>{_WITHIN}}" * has_bound, "dim")]]
    for one, label in zip(listed, labels, strict=True):
        cells = "".join(f"{_written(one, column):>{_CALLS_COLUMN}}" for column in shown)
        line = f"  {left(label, name)}{one.count:>{_CALLS},}{cells}"
        lines.append([(line, ""), (f"{exact_share(one):>{_WITHIN}}" * has_bound, "")])
    return [*lines, *_notes(calls, listed)]


def _labels(calls: list[CallFigures]) -> list[str]:
    labels = zip(place_labels(calls), calls, strict=True)
    return [f"{label} (concurrent)" if one.beside else label for label, one in labels]


def _written(one: CallFigures, column: str) -> str:
    return duration(getattr(one, _FIELDS.get(column, f"{column}_ns")))


def exact_share(one: CallFigures) -> str:
    """Return the share of calls within the time bound; a dash if there is no bound.

    ``100 %`` means that every call is within the bound.
    """
    if one.within_share is None:
        return "–"
    if one.within == one.count:
        return "100 %"
    return f"{min(one.within_share * 100, 99.99):.2f} %"


def _notes(calls: list[CallFigures], listed: list[CallFigures]) -> list[Line]:
    bounds = {one.name: one.bound_s for one in listed if one.bound_s is not None}
    texts = [f"{name} within {duration(bound * 1e9)}" for name, bound in bounds.items()]
    if failed := sum(one.errors for one in listed if one.category == names.REQUEST):
        texts.append(f"{failed:,} failed")
    worst = max(one.error_ratio for one in listed)
    texts.append(f"p50, p95, p99 are accurate to {figures(worst * 100)} %")
    if rest := len(calls) - len(listed):
        texts.append(f"{plural(rest, 'other')}: summary --calls")
    return [[("  " + " · ".join(texts), "dim")]]


_MAX_USES: Final = 10
_USE_NAME: Final = 16
_LONGEST: Final = 34
_USE_COLUMN: Final = 9


class _Column(NamedTuple):
    title: str
    measure: names.Measure
    value: str
    """Figure to show: ``mean`` or ``most`` (the maximum) of the calls."""
    written: Callable[[float], str]


def _signed(count: float) -> str:
    return f"{'-' if count < 0 else '+'}{size(abs(count))}" if count else "0 B"


def _peak(count: float) -> str:
    """Format a peak in binary units, as in the summary's ``process`` line."""
    return size(count, 1024)


_COLUMNS: Final = (
    _Column("CPU", names.CPU_NS, "mean", duration),
    _Column("GPU time", names.GPU_NS, "mean", duration),
    _Column("memory", names.MEMORY_GROWTH, "mean", _signed),
    _Column("peak", names.MEMORY_PEAK, "most", _peak),
    _Column("GPU mem", names.CUDA_GROWTH, "mean", _signed),
    _Column("GPU peak", names.CUDA_PEAK, "most", _peak),
    _Column("read", names.READ_BYTES, "mean", size),
    _Column("written", names.WRITTEN_BYTES, "mean", size),
    _Column("waits", names.SWITCHES, "mean", figures),
    _Column("preempt", names.INVOLUNTARY_SWITCHES, "mean", figures),
)
"""Columns by precedence: a narrow terminal shows only the first ones."""


def use_lines(uses: list[SectionUse], width: int) -> list[Line]:
    """Return a line per section with measured resource use: means per call, and highest peaks."""
    if not uses:
        return []
    shown = [
        column for column in _COLUMNS if any(column.measure.key in use.figures for use in uses)
    ]
    labels = place_labels(uses[:_MAX_USES])
    longest = max(_USE_NAME, *map(columns, labels))
    shown = shown[: (width - 2 - _USE_NAME - _CALLS) // _USE_COLUMN]
    room = width - 2 - _CALLS - _USE_COLUMN * len(shown)
    name = max(_USE_NAME, min(longest, room, _LONGEST + (width - WIDTH) // 2))
    titles = "".join(f"{column.title:>{_USE_COLUMN}}" for column in shown)
    lines: list[Line] = [[(f"  {left('mean of a call', name)}{'calls':>{_CALLS}}{titles}", "dim")]]
    for label, use in zip(labels, uses, strict=False):
        cells = "".join(f"{_cell(use, column):>{_USE_COLUMN}}" for column in shown)
        lines.append([(f"  {left(label, name)}{use.calls:>{_CALLS},}{cells}", "")])
    if rest := len(uses) - _MAX_USES:
        more = f"  {plural(rest, 'other')}: summary --json contains all"
        lines += [[(more, "dim")]] if rest > 0 else []
    return lines


def _cell(use: SectionUse, column: _Column) -> str:
    figure = use.figures.get(column.measure.key)
    return "–" if figure is None else column.written(getattr(figure, column.value))


def usage_texts(attributes: Mapping[str, Any]) -> list[str]:
    """Return the resource use in a span's attributes: ``CPU 12.1 ms``, ``memory +3.20 MB``, …."""
    measures = (
        ("CPU", names.CPU_NS, duration),
        ("GPU time", names.GPU_NS, duration),
        ("memory", names.MEMORY_GROWTH, _signed),
        ("peak", names.MEMORY_PEAK, _peak),
        ("GPU memory", names.CUDA_GROWTH, _signed),
        ("GPU peak", names.CUDA_PEAK, _peak),
        ("read", names.READ_BYTES, size),
        ("written", names.WRITTEN_BYTES, size),
        ("waits", names.SWITCHES, str),
        ("preemptions", names.INVOLUNTARY_SWITCHES, str),
    )
    return [
        f"{label} {written(value)}"
        for label, measure, written in measures
        if (value := attributes.get(measure.attribute)) is not None
    ]
