"""Columns of measures over many runs, one row per run, and the trend of a column over time.

A column is anything that a bound can name (``step``, ``forward.p95``, ``samples_per_s``), a
parameter, a result, or the last value of a logged name. ``peak_memory`` is the peak of GPU memory,
or of resident memory if no GPU was used. ``peak_gpu_memory`` is always the peak of GPU memory.
``flops`` is the number of floating-point operations of a step.
"""

from __future__ import annotations

from math import isfinite
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from otel_mlperf.analysis.comparison.bounds import find_value
from otel_mlperf.analysis.comparison.comparison import compare_runs
from otel_mlperf.analysis.comparison.comparison_shapes import (  # noqa: TC001 - msgspec reads it
    TimeChange,
)
from otel_mlperf.analysis.comparison.run_measures import STEP, measure_run
from otel_mlperf.errors import StoreError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_mlperf.analysis.comparison.comparison_shapes import RunMeasures
    from otel_mlperf.store.run_folders import RunFolder

USUAL: Final = (STEP, "samples_per_s")
"""Columns shown by default."""
_ALIASES: Final = {
    "peak_memory": ("cuda_peak_bytes", "memory_peak_bytes"),
    "peak_gpu_memory": ("cuda_peak_bytes", "gpu_memory_bytes"),
    "flops": ("flops_per_step",),
}


CellUnit = Literal["ns", "bytes", "FLOP", "FLOP/s", ""]
_FLOPS: Final[dict[str, CellUnit]] = {"flops_per_step": "FLOP", "flops_per_s": "FLOP/s"}


class Cell(msgspec.Struct, frozen=True):
    """The value of one run in one column."""

    value: Any
    """None: the run has no value of that name."""
    unit: CellUnit = ""


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table: a run with its cells."""

    id: str
    short_id: str
    name: str
    started_ns: int
    tags: list[str]
    cells: dict[str, Cell]
    change: TimeChange | None = None
    """In a trend: change of the step since the previous run. Without steps, change of the longest
    section outside steps that both runs have. None: no comparison is possible.
    """


class ColumnMean(msgspec.Struct, frozen=True, kw_only=True):
    """Mean of a column over the runs that have a number in it."""

    value: float
    sd: float | None
    """Standard deviation over the runs (n - 1); None: only one run."""
    runs: int
    unit: CellUnit = ""


class RunColumns(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="run_columns/1"
):
    """Runs with their requested columns, in the requested order."""

    runs: list[RunRow]
    means: dict[str, ColumnMean] | None = None
    """Mean by column, if requested."""


def read_means(rows: Sequence[RunRow]) -> dict[str, ColumnMean]:
    """Return the mean of each column over its numeric cells; omit columns without such cells."""
    means = {}
    for column in rows[0].cells if rows else ():
        cells = [row.cells[column] for row in rows]
        known = [(float(c.value), c.unit) for c in cells if _is_number(c.value)]
        if known:
            values = [value for value, _ in known]
            sd = stdev(values) if len(values) > 1 else None
            means[column] = ColumnMean(
                value=fmean(values), sd=sd, runs=len(values), unit=known[0][1]
            )
    return means


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def read_columns(
    runs: Iterable[RunFolder], columns: Sequence[str], usual: Sequence[str] = ()
) -> list[RunRow]:
    """Return one row per run, in the given order; a run that cannot be read has empty cells.

    Args:
        runs: the runs to read.
        columns: the requested columns.
        usual: further columns, placed before ``columns``; those without any value are omitted.

    Raises:
        UsageError: no run has a value in a requested column.
    """
    return [row for row, _ in _read(runs, columns, usual)]


def _read(
    runs: Iterable[RunFolder], columns: Sequence[str], usual: Sequence[str]
) -> list[tuple[RunRow, RunMeasures | None]]:
    known = [(run, _measured(run)) for run in runs]
    available = [measures for _, measures in known if measures is not None]
    has = [one for one in usual if any(_cell(run, one).value is not None for run in available)]
    shown = list(dict.fromkeys([*has, *columns]))
    rows = [(_row(run, measures, shown), measures) for run, measures in known]
    for column in columns:
        if rows and all(row.cells[column].value is None for row, _ in rows):
            raise UsageError(_nothing(column, available))
    return rows


def read_trend(
    runs: Sequence[RunFolder], columns: Sequence[str], usual: Sequence[str] = ()
) -> list[RunRow]:
    """Return the runs from oldest to newest, each with the change since the previous run.

    The change is that of the step's time or, if a run has no steps, of the section outside steps
    with most time. ``columns`` and ``usual`` have the same meaning as in ``read_columns``.

    Raises:
        UsageError: no run has a value in a requested column.
    """
    in_order = sorted(runs, key=lambda run: (run.facts.started_ns, run.path.name))
    before: RunMeasures | None = None
    trend = []
    for row, measures in _read(in_order, columns, usual):
        change = None
        if measures is not None and (measures.times or measures.calls):
            found = compare_runs(before, measures) if before else None
            change = next(iter([*found.times, *found.calls]), None) if found else None
            before = (
                measures  # a run without times is skipped: the next run is compared with this one
            )
        trend.append(msgspec.structs.replace(row, change=change))
    return trend


def sort_rows(rows: Iterable[RunRow], column: str, *, ascending: bool = False) -> list[RunRow]:
    """Return rows sorted by ``column``, largest first by default; rows without a value are last."""
    rows = list(rows)
    available = [row for row in rows if row.cells[column].value is not None]
    is_number = all(isinstance(row.cells[column].value, int | float) for row in available)

    def key(row: RunRow) -> Any:
        value = row.cells[column].value
        return value if is_number else str(value)

    available.sort(key=key, reverse=not ascending)
    return available + [row for row in rows if row.cells[column].value is None]


def _measured(run: RunFolder) -> RunMeasures | None:
    try:
        return measure_run(run)
    except StoreError:  # `summary` of that run reports the error
        return None


def _row(run: RunFolder, measures: RunMeasures | None, columns: Sequence[str]) -> RunRow:
    cells = {column: _cell(measures, column) if measures else Cell(None) for column in columns}
    return RunRow(
        id=run.facts.id,
        short_id=run.short_id,
        name=run.facts.name,
        started_ns=run.facts.started_ns,
        tags=run.facts.tags,
        cells=cells,
    )


def _cell(run: RunMeasures, column: str) -> Cell:
    for name in _ALIASES.get(column, (column,)):
        if (value := find_value(run, name)) is not None:
            return Cell(value, _unit(run, name))
    for known in (run.result, run.last, run.params):
        if column in known:
            return Cell(known[column])
    return Cell(None)


def _unit(run: RunMeasures, name: str) -> CellUnit:
    if name in _FLOPS:
        return _FLOPS[name]
    if name.endswith("_bytes"):
        return "bytes"
    return "ns" if name.endswith("_ns") or name not in run.numbers else ""


def _nothing(column: str, runs: Sequence[RunMeasures]) -> str:
    known = dict.fromkeys(
        name
        for run in runs
        for name in (
            *(time.name.replace(" ", "_") for time in (*run.times, *run.calls)),
            *(*run.numbers, *run.result, *run.last, *run.params),
        )
    )
    return f"column {column}: no run has this column; available: {', '.join(known) or 'none'}"
