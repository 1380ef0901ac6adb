"""Device work in the profiler windows of a run, in one step, or in one trace.

The input is rows of the tables ``windows``, ``totals``, ``streams``, ``copies``, ``gaps`` and
``allocator``, from a run folder or computed from a trace. Counts and times of several windows are
summed. Quantiles cannot be summed and exist for a single window only. Figures of a step are
computed from all of the step's events, which are stored regardless of the span budget, so the
figures are exact. A memory peak is attributed to the operator and the section that started last, of
those that were running at the time of the peak.
"""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import msgspec

from otel_mlperf.analysis.profiles.kernel_rows import (
    BY,
    Whole,
    added,
    busy_of,
    count_groups,
    device_figures,
    grouped,
    table,
)
from otel_mlperf.analysis.profiles.recorded_windows import (
    find_unread,
    is_complete,
    read_completeness,
    with_rank_losses,
)
from otel_mlperf.analysis.profiles.window_shapes import (
    AllocatorPeak,
    CollectiveFigures,
    CollectiveKernels,
    CopyFigures,
    Kernels,
    ProfiledStepFacts,
    WindowFacts,
)
from otel_mlperf.errors import NoSuchWindow
from otel_mlperf.store.table_reader import Store
from otel_mlperf.store.window_facts import CapturedWork, CollectiveTotal, UnknownRows
from otel_mlperf.tables.window_tables import (
    AllocatorRow,
    CompletenessRow,
    CopyRow,
    GapRow,
    StreamRow,
    TotalRow,
    WindowRow,
    WindowTables,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from otel_mlperf.analysis.profiles.kernel_rows import By
    from otel_mlperf.store.run_folders import RunFolder
    from otel_mlperf.store.window_facts import StepEvents, WindowCompleteness


_PEAKS: Final = """SELECT rank, restart, device_type, device, time_ns FROM allocator
WHERE peak_bytes IS NOT NULL QUALIFY row_number() OVER (
    PARTITION BY rank, device_type, device ORDER BY peak_bytes DESC, time_ns) = 1"""
_RAN: Final = """SELECT name FROM spans WHERE rank = $rank AND restart = $restart
AND kind = $kind AND ($category = '' OR category = $category)
AND start_ns <= $at AND end_ns >= $at ORDER BY start_ns DESC, end_ns LIMIT 1"""
_WHAT: Final = {"operator": ("event", "operator"), "section": ("section", "")}


_Device = tuple[int, int, int]


def read_peaks(store: Store) -> dict[_Device, dict[str, str]]:
    """Return, by device, the names of ``operator`` and ``section`` at the device's memory peak.

    A key is a rank, device type and device index. A name is empty if no operator (or section) ran.
    """
    peaks: dict[_Device, dict[str, str]] = {}
    for rank, restart, device_type, device, time_ns in store.rows(_PEAKS):
        peaks[rank, device_type, device] = about = {}
        for what, (kind, category) in _WHAT.items():
            found = store.rows(
                _RAN, rank=rank, restart=restart, at=time_ns, kind=kind, category=category
            )
            about[what] = found[0][0] if found else ""
    return peaks


_MAX_GAPS: Final = 20


def read_rows(run: RunFolder, rank: int | None = None) -> WindowTables:
    """Return the table rows of all profiler windows of a run, or only of one ``rank``.

    Raises:
        NoSuchWindow: the run, or ``rank``, has no windows.
        StoreError: a file of the run cannot be read.
    """
    return _read_rows(run, Store(run.path, rank), rank)


def _read_rows(run: RunFolder, store: Store, rank: int | None) -> WindowTables:
    windows = store.read(WindowRow)
    if not windows:
        raise NoSuchWindow(_no_window(run, store, rank))
    shown = ", ".join(f"'{what}'" for what in BY)
    return WindowTables(
        windows=windows,
        completeness=store.read(CompletenessRow),
        # Parts contain more kinds of totals than commands show: the other kinds are never read.
        totals=store.read(TotalRow, f"WHERE what IN ({shown})"),
        streams=store.read(StreamRow),
        copies=store.read(CopyRow),
        gaps=store.read(GapRow),
        allocator=store.read(AllocatorRow),
    )


def read_kernels(
    run: RunFolder, source: str, by: By | None = None, rank: int | None = None
) -> Kernels:
    """Return the totals of all profiler windows of a run, or only of one ``rank``.

    ``source`` and ``by`` have the same meaning as in ``find_kernels``.

    Raises:
        NoSuchWindow: the run, or that rank, has no windows.
        StoreError: a file of the run cannot be read.
    """
    store = Store(run.path, rank)
    rows = _read_rows(run, store, rank)
    return find_kernels(rows, source, by, run.facts.world_size, read_peaks(store))


def find_kernels(
    rows: WindowTables,
    source: str,
    by: By | None = None,
    world_size: int | None = None,
    peaks: Mapping[_Device, dict[str, str]] = MappingProxyType({}),
) -> Kernels:
    """Return the totals of the windows in ``rows``.

    ``source`` is the displayed name of the run or trace, ``by`` the grouping (None: by kernel, or
    by operator if no device worked), and ``peaks`` a result of ``read_peaks``.
    """
    windows = find_windows(rows)
    # A row without a stream is the whole device: overlapping streams would sum to more.
    whole = [row for row in rows.streams if row.stream is None]
    devices = device_figures(whole, ("rank", "device"))
    chosen: By = by or ("kernel" if devices else "operator")
    of = Whole(sum(window.duration_ns for window in windows), busy_of(devices))
    return Kernels(
        source=source,
        by=chosen,
        world_size=world_size,
        windows=windows,
        is_complete=is_complete(windows),
        total=added(whole, None) if whole else None,
        devices=devices,
        rows=table(rows, chosen, of, windows),
        groups=count_groups(rows, is_device=bool(devices)),
        collectives=find_collectives(rows.totals),
        collective_kernels=find_collective_kernels(rows.windows),
        copies=find_copies(rows.copies),
        gaps=_gaps(rows.gaps),
        memory=_memory(rows.allocator, peaks),
    )


def find_windows(rows: WindowTables) -> list[WindowFacts]:
    """Return the facts about each profiler window, sorted by rank, restart and start."""
    known = read_completeness(rows.completeness)
    windows = [_window(row, known) for row in rows.windows]
    numbers = [row.number for row in rows.windows]
    windows = with_rank_losses(windows, numbers)
    return sorted(windows, key=lambda window: (window.rank, window.restart, window.start_ns))


def _no_window(run: RunFolder, store: Store, rank: int | None) -> str:
    of_rank = "" if rank is None else f" of rank {rank}"
    tried = f"looking for profiler windows{of_rank} in run {run.short_id}"
    if unread := len(find_unread(run, store, rank)):
        many = f"{unread:,} windows are" if unread > 1 else "1 window is"
        return (
            f"{tried}: {many} still being read; try again in a moment. If the agent has ended: "
            f"otel-mlperf doctor {run.short_id} --recover"
        )
    others = Store(run.path).rows("SELECT DISTINCT rank FROM windows ORDER BY rank")
    if others:
        known = ", ".join(str(other) for (other,) in others)
        return f"{tried}: this rank has none; windows exist for ranks {known}"
    return (
        f"{tried}: the run has none; record a window with torch_profile() or trace_handler(), or "
        "pass the path of a trace"
    )


def _window(row: WindowRow, known: Mapping[str, WindowCompleteness]) -> WindowFacts:
    categories = json.loads(row.categories)
    return WindowFacts(
        rank=row.rank,
        restart=row.restart,
        trace=row.trace,
        digest=row.digest,
        start_ns=row.start_ns,
        duration_ns=row.end_ns - row.start_ns,
        is_unix_time=row.is_unix_time,
        steps=json.loads(row.steps),
        events=sum(count for count, _ in categories.values()),
        categories={name: count for name, (count, _) in categories.items()},
        orphans=json.loads(row.orphans),
        damage=[
            {"kind": kind, "occurrences": count, "offset": offset, "example": example}
            for kind, count, offset, example in json.loads(row.damage)
        ],
        completeness=known.get(row.digest),
        unknown_rows=_unknown_rows(row.unknown_rows),
        captured=_captured(row.captured),
    )


def _unknown_rows(text: str | None) -> list[UnknownRows]:
    return msgspec.json.decode(text, type=list[UnknownRows]) if text else []


def _captured(text: str | None) -> CapturedWork | None:
    return msgspec.json.decode(text, type=CapturedWork) if text else None


def find_collectives(rows: list[TotalRow]) -> list[CollectiveFigures]:
    """Return the collectives in host annotations, summed by name, longest first."""
    mine = [row for row in rows if row.what == "annotation" and row.kind]
    # The device has a copy of each annotation: including both would count everything twice.
    mine = [row for row in mine if not row.category.startswith("gpu_")]
    collectives = [
        CollectiveFigures(
            name=name,
            calls=sum(row.count for row in part),
            total_ns=sum(row.total_ns for row in part),
        )
        for (name,), part in grouped(mine, ("name",)).items()
    ]
    return sorted(collectives, key=lambda collective: (-collective.total_ns, collective.name))


def find_collective_kernels(windows: list[WindowRow]) -> list[CollectiveKernels]:
    """Return the collective kernels of all windows, by operation and group size, longest first."""
    parts: dict[tuple[str, int | None], list[CollectiveTotal]] = {}
    for window in windows:
        text = window.collectives
        for total in msgspec.json.decode(text, type=list[CollectiveTotal]) if text else []:
            parts.setdefault((total.operation, total.group_size), []).append(total)
    found = [_collective_kernels(*key, totals) for key, totals in parts.items()]
    return sorted(found, key=lambda kernels: (-kernels.total_ns, kernels.operation))


def _collective_kernels(
    operation: str, group_size: int | None, totals: list[CollectiveTotal]
) -> CollectiveKernels:
    bus_ns = sum(total.bus_ns for total in totals)
    return CollectiveKernels(
        operation=operation,
        group_size=group_size,
        calls=sum(total.calls for total in totals),
        total_ns=sum(total.total_ns for total in totals),
        bytes=sum(total.bytes for total in totals) or None,
        bus_bytes_per_s=sum(total.bus_bytes for total in totals) * 1e9 / bus_ns if bus_ns else None,
    )


def find_copies(rows: list[CopyRow]) -> list[CopyFigures]:
    """Return sums over copies with equal direction, name and ``pageable``, longest first."""
    copies = []
    for part in grouped(rows, ("direction", "name", "pageable")).values():
        sizes = [row.bytes for row in part if row.bytes is not None]
        # Only copies of known size contribute to the rate.
        sized = sum(row.sized_ns for row in part)
        copies.append(
            CopyFigures(
                direction=part[0].direction,
                name=part[0].name,
                pageable=part[0].pageable,
                calls=sum(row.count for row in part),
                total_ns=sum(row.total_ns for row in part),
                bytes=sum(sizes) if sizes else None,
                bytes_per_s=sum(sizes) * 1e9 / sized if sizes and sized else None,
            )
        )
    return sorted(copies, key=lambda copy: (-copy.total_ns, copy.name))


def _gaps(rows: list[GapRow]) -> list[GapRow]:
    return sorted(rows, key=lambda row: (-row.duration_ns, row.start_ns))[:_MAX_GAPS]


def _memory(
    rows: list[AllocatorRow], peaks: Mapping[_Device, dict[str, str]]
) -> list[AllocatorPeak]:
    parts = grouped(rows, ("rank", "device_type", "device"))
    return [
        AllocatorPeak(
            rank=rank,
            device_type=kind,
            device=device,
            allocated_bytes=_known_max(row.peak_bytes for row in parts[rank, kind, device]),
            reserved_bytes=_known_max(row.reserved_bytes for row in parts[rank, kind, device]),
            **{of: peaks.get((rank, kind, device), {}).get(of) for of in ("section", "operator")},
        )
        for rank, kind, device in sorted(parts)
    ]


def _known_max(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def find_step(
    tables: WindowTables,
    counted: WindowTables,
    recorded: StepEvents,
    source: str,
    by: By | None = None,
    world_size: int | None = None,
) -> Kernels:
    """Return the totals of one step.

    Args:
        tables: the rows of all windows.
        counted: the step's own rows of the tables, from ``kineto.counting.stored_step``.
        recorded: the events of the step.
        source: displayed name of the run or trace.
        by: the grouping; None: by kernel, or by operator if no device worked for the step.
        world_size: number of ranks of the run; None: unknown.
    """
    # Busy times of concurrent devices are summed.
    devices = [row for row in counted.streams if row.stream is None]
    is_device = bool(devices)
    digests = {digest for _, digest in recorded.windows}
    windows = [window for window in find_windows(tables) if window.digest in digests]
    step = _step_facts(recorded, devices)
    by = by or ("kernel" if is_device else "operator")
    return Kernels(
        source=source,
        by=by,
        world_size=world_size,
        windows=windows,
        is_complete=is_complete(windows),
        total=None,
        devices=[],
        rows=table(counted, by, Whole(step.duration_ns, step.busy_ns), windows),
        groups=count_groups(counted, is_device=is_device),
        collectives=find_collectives(counted.totals),
        copies=find_copies(counted.copies),
        gaps=[],
        memory=[],
        step=step,
    )


def _step_facts(recorded: StepEvents, devices: list[StreamRow]) -> ProfiledStepFacts:
    measured = ("busy_ns", "communication_ns", "exposed_communication_ns")
    return ProfiledStepFacts(
        name=recorded.name,
        phase=recorded.phase,
        number=recorded.number,
        ranks=sorted({row["rank"] for row in recorded.events}),
        events=len(recorded.events),
        duration_ns=sum(recorded.lengths_ns.values()),
        **{
            name: sum(getattr(row, name) for row in devices) if devices else None
            for name in measured
        },
    )
