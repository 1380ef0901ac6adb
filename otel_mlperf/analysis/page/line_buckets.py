"""Time series of readings and logged values, downsampled into buckets for a page.

The run's time is cut into equal buckets. A bucket contains the minimum, mean and maximum of its
readings. A bucket without a reading is empty. If there are too many ranks or devices for separate
lines, a single line contains the mean, minimum and maximum over all ranks and devices.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from otel_mlperf import names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_mlperf.names.metric import Metric
    from otel_mlperf.store.table_reader import Store

MOST: Final = 300
"""Maximum number of time buckets per line."""
_MAX_LINES: Final = 8
_MAX_VALUES: Final = 6
_PARTS: Final = """SELECT {key}, $begin + $width * ((time_ns - $begin) // $width) AS piece_ns,
    min(value), avg(value), max(value), count(*)
FROM {table} WHERE {where} AND isfinite(value) AND time_ns BETWEEN $begin AND $end
GROUP BY {key}, piece_ns ORDER BY {key}, piece_ns"""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a chart; all lists have equal length."""

    name: str
    time_ns: list[int]
    """Start times of the buckets, Unix time, ascending; all lines of a page have the same
    buckets."""
    min: list[float]
    mean: list[float]
    max: list[float]


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """A chart: lines of one unit."""

    id: str
    title: str
    unit: str
    """``By``, ``1`` (a share), ``W``, ``Cel``; empty for values that the program logged."""
    lines: list[Line]
    is_bucketed: bool
    """Whether any point represents several values."""


class _Wanted(NamedTuple):
    id: str
    title: str
    metric: Metric
    labels: tuple[tuple[str, str], ...] = ()
    """Names and values of labels that a reading must have."""
    is_rest: bool = False
    """Whether the chart shows one minus the reading."""


_READINGS: Final = (
    _Wanted("memory", "Process memory", names.PROCESS_MEMORY, ((names.PROCESS_ROLE, "main"),)),
    _Wanted(
        "cuda",
        "Memory allocated by PyTorch",
        names.CUDA_MEMORY,
        ((names.CUDA_MEMORY_STATE, "allocated"),),
    ),
    _Wanted("gpu-memory", "Device memory", names.GPU_MEMORY_USAGE),
    _Wanted("gpu-busy", "Device utilization", names.GPU_UTILIZATION),
    _Wanted("gpu-power", "Device power", names.HW_POWER),
    _Wanted("gpu-heat", "Device temperature", names.HW_TEMPERATURE),
    _Wanted(
        "cpu",
        "Host CPU utilization",
        names.SYSTEM_CPU_UTILIZATION,
        ((names.CPU_MODE, "idle"),),
        is_rest=True,
    ),
)


def read_reading_charts(store: Store, begin_ns: int, end_ns: int) -> list[Chart]:
    """Return a chart per metric of processes, devices and the host, for a range of Unix times.

    A metric without readings has no chart.
    """
    charts = []
    for wanted in _READINGS:
        parts = _parts(
            store,
            ("rank", "labels"),
            ("readings", "name = $name"),
            (begin_ns, end_ns),
            name=wanted.metric.name,
        )
        lines: dict[str, list[Any]] = {}
        for rank, labels, *part in parts:
            known = json.loads(labels)
            if _is_wanted(wanted, known):
                lines.setdefault(_line_name(rank, known), []).append(part)
        if lines:
            made = [_line(name, rows, is_rest=wanted.is_rest) for name, rows in lines.items()]
            charts.append(_chart(wanted.id, wanted.title, wanted.metric.unit, made, lines.values()))
    return charts


def read_value_charts(store: Store, begin_ns: int, end_ns: int) -> list[Chart]:
    """Return a chart for each of the first few names under which the program logged values."""
    chosen = store.rows(
        "SELECT name FROM values GROUP BY name HAVING count(*) > 1 "
        "ORDER BY min(time_ns), name LIMIT $most",
        most=_MAX_VALUES,
    )
    charts = []
    for at, (name,) in enumerate(chosen):
        parts = _parts(store, ("rank",), ("values", "name = $name"), (begin_ns, end_ns), name=name)
        lines: dict[str, list[Any]] = {}
        for rank, *part in parts:
            lines.setdefault(f"rank {rank}", []).append(part)
        if lines:
            made = [_line(line, rows) for line, rows in lines.items()]
            charts.append(_chart(f"value-{at}", name, "", made, lines.values()))
    return charts


def _parts(
    store: Store,
    key: tuple[str, ...],
    source: tuple[str, str],
    between: tuple[int, int],
    **values: Any,
) -> list[tuple[Any, ...]]:
    begin, end = between
    table, where = source
    sql = _PARTS.format(key=", ".join(key), table=table, where=where)
    width = max(1, -(-(end - begin) // MOST))
    return store.rows(sql, begin=begin, end=end, width=width, **values)


def _is_wanted(wanted: _Wanted, labels: dict[str, str]) -> bool:
    # Excluded: MIG instances, which are part of their GPU, and the temperature of GPU memory.
    return (
        all(labels.get(name) == value for name, value in wanted.labels)
        and names.HW_PARENT not in labels
        and labels.get(names.HW_GPU_TASK, names.TASK_GENERAL) == names.TASK_GENERAL
        and labels.get(names.HW_SENSOR_LOCATION) != "memory"
    )


def _line_name(rank: int | None, labels: dict[str, str]) -> str:
    device = labels.get(names.HW_NAME) or labels.get(names.DEVICE_INDEX)
    name_parts = [] if rank is None else [f"rank {rank}"]
    if device:
        name_parts.append(device if device.startswith("gpu") else f"device {device}")
    return " ".join(name_parts) or "host"


def _line(name: str, rows: list[Any], *, is_rest: bool = False) -> Line:
    # Several nodes or label sets may have the same name: their rows have to be merged by time.
    rows.sort()
    times, low, mean, high, _ = map(list, zip(*rows, strict=True))
    if is_rest:
        low, mean, high = ([max(0.0, 1 - value) for value in one] for one in (high, mean, low))
    return Line(name=name, time_ns=times, min=low, mean=mean, max=high)


def _chart(
    id: str,
    title: str,
    unit: str,
    lines: list[Line],
    rows: Iterable[list[Any]],
) -> Chart:
    several = any(count > 1 for line in rows for *_, count in line)
    if len(lines) > _MAX_LINES:
        lines, several = [_together(lines)], True
    return Chart(id=id, title=title, unit=unit, lines=lines, is_bucketed=several)


def _together(lines: list[Line]) -> Line:
    pieces: dict[int, list[tuple[float, float, float]]] = {}
    for line in lines:
        for at, *point in zip(line.time_ns, line.min, line.mean, line.max, strict=True):
            pieces.setdefault(at, []).append((point[0], point[1], point[2]))
    times = sorted(pieces)
    return Line(
        name=f"mean of {len(lines)} lines",
        time_ns=times,
        min=[min(low for low, _, _ in pieces[at]) for at in times],
        mean=[sum(mean for _, mean, _ in pieces[at]) / len(pieces[at]) for at in times],
        max=[max(high for _, _, high in pieces[at]) for at in times],
    )
