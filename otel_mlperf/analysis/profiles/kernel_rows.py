"""Rows of the kernels table: totals of profiler windows, by kernel, operator, section and so on."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar

from msgspec.structs import replace

from otel_mlperf.analysis.profiles.window_shapes import DeviceFigures, KernelRow, RowsTogether
from otel_mlperf.store.window_facts import ON_DEVICE, ON_HOST
from otel_mlperf.tables.row import Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_mlperf.analysis.profiles.window_shapes import Kernels, WindowFacts
    from otel_mlperf.tables.window_tables import StreamRow, TotalRow, WindowTables

By = Literal["kernel", "operator", "annotation", "stream", "section", "phase", "step"]
BY: Final[tuple[By, ...]] = (
    "kernel",
    "operator",
    "annotation",
    "stream",
    "section",
    "phase",
    "step",
)
_PLACES: Final = ("section", "phase", "step")
_OVERLAPPING: Final = ("annotation", "stream")

_Row = TypeVar("_Row", bound=Row)


class Whole(NamedTuple):
    """Times to which the shares of rows are relative."""

    window_ns: int
    """Duration of the windows, or of a step, summed over all ranks."""
    busy_ns: int | None
    """Busy time of the devices; None: no device worked."""


def table(rows: WindowTables, by: By, of: Whole, windows: Sequence[WindowFacts]) -> list[KernelRow]:
    """Return the rows of the kernels table, longest first; streams are sorted by busy time.

    ``by`` is the grouping; the result is empty if no recorded work belongs to a named group. Shares
    are relative to ``of``. Names of traces in ``windows`` distinguish equally named steps.
    """
    if by == "stream":
        return _streams(rows, windows)
    is_device = of.busy_ns is not None
    mine = rows_of(rows, by, is_device=is_device)
    if not any(row.name for row in mine):
        return []
    measured = "total_ns"
    whole = of.window_ns if of.busy_ns is None or by == "annotation" else of.busy_ns
    if by == "operator":
        measured = "device_ns" if is_device else "self_ns"
        # Relative to all operators: they do not sum to the window, because threads are concurrent.
        whole = whole if is_device else sum(row.self_ns for row in mine)
    if by == "step":
        # Each window may have a ProfilerStep#5: different steps, which must not be summed.
        mine = _distinguished(mine, windows)
    kernel_rows = [
        _row(part, measured, whole, f"in no {by}")
        for part in grouped(mine, ("category", "name")).values()
    ]
    return sorted(kernel_rows, key=lambda row: (-row.measured_ns, -row.self_ns, row.name))


def choose_rows(kernels: Kernels, top: int | None) -> Kernels:
    """Return ``kernels`` with only the first ``top`` rows (None: all rows), and two sums added.

    The field ``more`` is the sum of the omitted rows, ``together`` the sum of all rows.
    """
    rows = kernels.rows
    more = rows[len(rows) if top is None else top :]
    return replace(
        kernels,
        rows=rows[: len(rows) - len(more)],
        more=_add_up(more, kernels.by) if more else None,
        together=_add_up(rows, kernels.by) if rows else None,
    )


def _add_up(rows: Sequence[KernelRow], by: str) -> RowsTogether:
    is_whole = by not in _OVERLAPPING
    return RowsTogether(
        rows=len(rows),
        calls=sum(row.calls for row in rows),
        measured_ns=sum(row.measured_ns for row in rows) if is_whole else None,
        share=sum(row.share for row in rows) if is_whole else None,
    )


def rows_of(rows: WindowTables, by: By, *, is_device: bool) -> list[TotalRow]:
    """Return the totals grouped by ``by``.

    Sections, phases and steps have separate totals for the host and for devices: ``is_device``
    selects the totals for devices.
    """
    mine = [row for row in rows.totals if row.what == by]
    if by in _PLACES:
        mine = [row for row in mine if row.category == (ON_DEVICE if is_device else ON_HOST)]
    return mine


def count_groups(rows: WindowTables, *, is_device: bool) -> dict[str, int]:
    """Return the number of distinct names per grouping, for the host or for devices."""
    return {
        what: len({row.name for row in rows_of(rows, what, is_device=is_device)} - {""})
        for what in BY
    }


def _distinguished(steps: list[TotalRow], windows: Sequence[WindowFacts]) -> list[TotalRow]:
    """Return ``steps`` with unique names: rank or trace is appended to names that steps share."""
    traces = {window.digest: window.trace for window in windows}
    of_name = grouped(steps, ("name",))
    of_rank = grouped(steps, ("name", "rank"))
    named = []
    for row in steps:
        name, rank = row.name, row.rank
        if not name:
            named.append(row)
            continue
        more = f" · rank {rank}" if len({other.rank for other in of_name[name,]}) > 1 else ""
        more += f" · {traces[row.digest]}" if len(of_rank[name, rank]) > 1 else ""
        named.append(replace(row, name=name + more))
    return named


def _row(rows: list[TotalRow], measured: str, whole: int, nameless: str) -> KernelRow:
    """Return one row: the sums of ``rows``, which have equal names, and their main section.

    That is the section with most of their time. The share is the sum of the column ``measured``
    divided by ``whole``; ``nameless`` replaces an empty name.
    """
    first = rows[0]
    # Quantiles of several windows cannot be merged: only a single window has them.
    single = first if len(rows) == 1 else None
    count, total = sum(row.count for row in rows), sum(row.total_ns for row in rows)
    in_section: dict[str, int] = defaultdict(int)
    for row in rows:
        in_section[row.section] += row.section_ns
    spent = sum(getattr(row, measured) for row in rows)
    return KernelRow(
        name=first.name or nameless,
        category=first.category,
        kind=first.kind,
        section=max(in_section, key=lambda name: (in_section[name], name)),
        calls=count,
        total_ns=total,
        self_ns=sum(row.self_ns for row in rows),
        device_ns=sum(row.device_ns for row in rows),
        measured_ns=spent,
        share=spent / whole if whole else 0.0,
        mean_ns=total / count,
        min_ns=min(row.min_ns for row in rows),
        max_ns=max(row.max_ns for row in rows),
        p50_ns=single.p50_ns if single else None,
        p95_ns=single.p95_ns if single else None,
    )


def device_figures(rows: list[StreamRow], keys: tuple[str, ...]) -> list[DeviceFigures]:
    """Return the figures of each device or stream, which the columns ``keys`` identify."""
    parts = grouped(rows, keys)
    return [added(parts[key], parts[key][0]) for key in sorted(parts)]


def added(rows: list[StreamRow], only: StreamRow | None) -> DeviceFigures:
    """Return the sums of the figures of several windows, devices or streams.

    ``only`` is a row with the rank, device and stream that all rows share; None if these differ.
    """
    single = rows[0] if len(rows) == 1 else None
    delays = [row.delay_max_ns for row in rows if row.delay_max_ns is not None]
    # `or 0`: windows evaluated by an earlier version have no overlap figure.
    sums = {name: sum(getattr(row, name) or 0 for row in rows) for name in DeviceFigures.ADDED}
    return DeviceFigures(
        rank=only.rank if only else None,
        device=only.device if only else None,
        stream=only.stream if only else None,
        delay_p50_ns=single.delay_p50_ns if single else None,
        delay_p95_ns=single.delay_p95_ns if single else None,
        delay_max_ns=max(delays, default=None),
        **sums,
    )


def _streams(rows: WindowTables, windows: Sequence[WindowFacts]) -> list[KernelRow]:
    keys = ("rank", "device", "stream")
    streams = grouped([row for row in rows.streams if row.stream is not None], keys)
    totals = grouped([row for row in rows.totals if row.what == "stream"], keys)
    several = len({facts.rank for facts in windows}) > 1
    kernel_rows = []
    for key, part in streams.items():
        busy, window = sum(row.busy_ns for row in part), sum(row.window_ns for row in part)
        spent = _row(totals[key], "total_ns", window, "")
        rank = f"rank {key[0]} " if several else ""
        kernel_rows.append(
            KernelRow(
                **{name: getattr(spent, name) for name in KernelRow.UNCHANGED},
                name=rank + spent.name,
                measured_ns=busy,
                share=busy / window if window else 0.0,
            )
        )
    return sorted(kernel_rows, key=lambda row: (-row.measured_ns, row.name))


def busy_of(devices: Iterable[DeviceFigures]) -> int | None:
    """Return the sum of the devices' busy times in ns; None if there are no devices."""
    times = [device.busy_ns for device in devices]
    return sum(times) if times else None


def grouped(rows: Iterable[_Row], keys: tuple[str, ...]) -> dict[tuple[Any, ...], list[_Row]]:
    """Group rows by the values of the columns ``keys``."""
    groups: dict[tuple[Any, ...], list[_Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(getattr(row, key) for key in keys)].append(row)
    return groups
