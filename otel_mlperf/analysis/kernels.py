"""What did the devices do in the profiler windows of a run, or in one trace?

From the rows of the tables ``windows``, ``totals``, ``streams``, ``copies``, ``gaps`` and
``allocator``, whether a run folder has them or they were counted just now. Counts and times of
several windows add up; quantiles do not, and are there for a single window only.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, Literal

from otel_mlperf.analysis.profiled import find_unread
from otel_mlperf.analysis.windows import (
    AllocatorPeak,
    CollectiveFigures,
    CopyFigures,
    DeviceFigures,
    GapFigures,
    KernelRow,
    Kernels,
    WindowFacts,
)
from otel_mlperf.errors import NoSuchWindow
from otel_mlperf.store.reader import Store

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from otel_mlperf.store.runs import RunFolder

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
_TABLES: Final = ("windows", "streams", "copies", "gaps", "allocator")
_GAPS: Final = 20

_Rows = list[dict[str, Any]]


def read_rows(run: RunFolder, rank: int | None = None) -> dict[str, _Rows]:
    """The rows of all windows of a run; of one ``rank``, if it is given.

    Raises:
        NoSuchWindow: the run, or that rank of it, has none.
        StoreError: a file of the run cannot be read.
    """
    store = Store(run.path, rank)
    rows = {table: store.records(f"SELECT * FROM {table}") for table in _TABLES}
    if not rows["windows"]:
        raise NoSuchWindow(_no_window(run, store, rank))
    shown = ", ".join(f"'{what}'" for what in BY)
    rows["totals"] = store.records(f"SELECT * FROM totals WHERE what IN ({shown})")
    return rows


def find_kernels(
    rows: Mapping[str, _Rows], source: str, by: By | None = None, world_size: int | None = None
) -> Kernels:
    """What the windows come to; by kernel, or by operator where no device was at work."""
    windows = [_window(row) for row in rows["windows"]]
    windows.sort(key=lambda one: (one.rank, one.restart, one.start_ns))
    whole = [row for row in rows["streams"] if row["stream"] is None]
    devices = _devices(whole, ("rank", "device"))
    chosen: By = by or ("kernel" if devices else "operator")
    return Kernels(
        source=source,
        by=chosen,
        world_size=world_size,
        windows=windows,
        total=_added(whole, None) if whole else None,
        devices=devices,
        rows=_table(rows, chosen, devices, windows),
        groups={what: len({row["name"] for row in _of(rows, what, devices)}) for what in BY},
        collectives=_collectives(rows["totals"]),
        copies=_copies(rows["copies"]),
        gaps=_gaps(rows["gaps"]),
        memory=_memory(rows["allocator"]),
    )


def _no_window(run: RunFolder, store: Store, rank: int | None) -> str:
    of_rank = "" if rank is None else f" of rank {rank}"
    tried = f"looking for profiler windows{of_rank} in run {run.short_id}"
    if unread := len(find_unread(run, store, rank)):
        many = f"{unread:,} windows are" if unread > 1 else "1 window is"
        return (
            f"{tried}: {many} still being read; try again in a moment, or, where no agent runs any "
            f"more, otel-mlperf recover {run.short_id}"
        )
    return (
        f"{tried}: there are none; record one with torch_profile() or trace_handler(), or give the "
        "path of a trace"
    )


def _window(row: dict[str, Any]) -> WindowFacts:
    categories = json.loads(row["categories"])
    return WindowFacts(
        rank=row["rank"],
        restart=row["restart"],
        trace=row["trace"],
        digest=row["digest"],
        start_ns=row["start_ns"],
        duration_ns=row["end_ns"] - row["start_ns"],
        is_unix_time=row["is_unix_time"],
        steps=json.loads(row["steps"]),
        events=sum(count for count, _ in categories.values()),
        categories={name: count for name, (count, _) in categories.items()},
        orphans=json.loads(row["orphans"]),
        damage=[
            {"kind": kind, "occurrences": count, "offset": offset, "example": example}
            for kind, count, offset, example in json.loads(row["damage"])
        ],
    )


def _devices(rows: _Rows, keys: tuple[str, ...]) -> list[DeviceFigures]:
    grouped = _grouped(rows, keys)
    return [_added(grouped[key], grouped[key][0]) for key in sorted(grouped)]


def _added(rows: _Rows, one: dict[str, Any] | None) -> DeviceFigures:
    """The figures of several windows, devices or streams; ``one`` if it is only one of these."""
    single = rows[0] if len(rows) == 1 else {}
    delays = [row["delay_max_ns"] for row in rows if row["delay_max_ns"] is not None]
    sums = {name: sum(row[name] for row in rows) for name in DeviceFigures.ADDED}
    return DeviceFigures(
        rank=one["rank"] if one else None,
        device=one["device"] if one else None,
        stream=one["stream"] if one else None,
        delay_p50_ns=single.get("delay_p50_ns"),
        delay_p95_ns=single.get("delay_p95_ns"),
        delay_max_ns=max(delays, default=None),
        **sums,
    )


def _table(
    rows: Mapping[str, _Rows],
    by: By,
    devices: Sequence[DeviceFigures],
    windows: Sequence[WindowFacts],
) -> list[KernelRow]:
    if by == "stream":
        return _streams(rows, windows)
    mine = _of(rows, by, devices)
    busy = sum(one.busy_ns for one in devices)
    span = sum(one.duration_ns for one in windows)
    measured = "total_ns"
    whole = busy if devices and by != "annotation" else span
    if by == "operator":
        measured = "device_ns" if devices else "self_ns"
        whole = busy if devices else sum(row["self_ns"] for row in mine)
    if by == "step":
        mine = _told_apart(mine, windows)
    found = [_row(part, measured, whole) for part in _grouped(mine, ("category", "name")).values()]
    return sorted(found, key=lambda row: (-row.measured_ns, -row.self_ns, row.name))


def _of(rows: Mapping[str, _Rows], by: By, devices: Sequence[DeviceFigures]) -> _Rows:
    mine = [row for row in rows["totals"] if row["what"] == by]
    if by in _PLACES:
        mine = [row for row in mine if row["category"] == ("device" if devices else "host")]
    return mine


def _told_apart(steps: _Rows, windows: Sequence[WindowFacts]) -> _Rows:
    """Steps of one name in several windows, by their rank, else by their trace: each is its own."""
    traces = {one.digest: one.trace for one in windows}
    of_name = _grouped(steps, ("name",))
    of_rank = _grouped(steps, ("name", "rank"))
    found = []
    for row in steps:
        name, rank = row["name"], row["rank"]
        more = f" · rank {rank}" if len({one["rank"] for one in of_name[name,]}) > 1 else ""
        more += f" · {traces[row['digest']]}" if len(of_rank[name, rank]) > 1 else ""
        found.append(row | {"name": name + more})
    return found


def _row(rows: _Rows, measured: str, whole: int) -> KernelRow:
    """One name; its section is that with most of its time in all windows."""
    first = rows[0]
    single = first if len(rows) == 1 else {}
    count, total = sum(row["count"] for row in rows), sum(row["total_ns"] for row in rows)
    in_section: dict[str, int] = defaultdict(int)
    for row in rows:
        in_section[row["section"]] += row["section_ns"]
    spent = sum(row[measured] for row in rows)
    return KernelRow(
        name=first["name"],
        category=first["category"],
        kind=first["kind"],
        section=max(in_section, key=lambda name: (in_section[name], name)),
        calls=count,
        total_ns=total,
        self_ns=sum(row["self_ns"] for row in rows),
        device_ns=sum(row["device_ns"] for row in rows),
        measured_ns=spent,
        share=spent / whole if whole else 0.0,
        mean_ns=total / count,
        min_ns=min(row["min_ns"] for row in rows),
        max_ns=max(row["max_ns"] for row in rows),
        p50_ns=single.get("p50_ns"),
        p95_ns=single.get("p95_ns"),
    )


def _streams(rows: Mapping[str, _Rows], windows: Sequence[WindowFacts]) -> list[KernelRow]:
    """The streams by how busy they were; ``share`` is of their windows."""
    keys = ("rank", "device", "stream")
    figures = _devices([row for row in rows["streams"] if row["stream"] is not None], keys)
    totals = _grouped([row for row in rows["totals"] if row["what"] == "stream"], keys)
    several = len({one.rank for one in windows}) > 1
    found = []
    for one in figures:
        spent = _row(totals[one.rank, one.device, one.stream], "total_ns", one.window_ns)
        rank = f"rank {one.rank} " if several else ""
        found.append(
            KernelRow(
                **{name: getattr(spent, name) for name in KernelRow.UNCHANGED},
                name=rank + spent.name,
                measured_ns=one.busy_ns,
                share=one.busy_ns / one.window_ns if one.window_ns else 0.0,
            )
        )
    return sorted(found, key=lambda row: (-row.measured_ns, row.name))


def _collectives(rows: _Rows) -> list[CollectiveFigures]:
    """The longest first; their copies on a device's rows are the kernels."""
    mine = [row for row in rows if row["what"] == "annotation" and row["kind"]]
    mine = [row for row in mine if not row["category"].startswith("gpu_")]
    found = [
        CollectiveFigures(
            name=name,
            calls=sum(row["count"] for row in part),
            total_ns=sum(row["total_ns"] for row in part),
        )
        for (name,), part in _grouped(mine, ("name",)).items()
    ]
    return sorted(found, key=lambda one: (-one.total_ns, one.name))


def _copies(rows: _Rows) -> list[CopyFigures]:
    found = []
    for part in _grouped(rows, ("direction", "name", "pageable")).values():
        sizes = [row["bytes"] for row in part if row["bytes"] is not None]
        sized = sum(row["sized_ns"] for row in part)
        found.append(
            CopyFigures(
                direction=part[0]["direction"],
                name=part[0]["name"],
                pageable=part[0]["pageable"],
                calls=sum(row["count"] for row in part),
                total_ns=sum(row["total_ns"] for row in part),
                bytes=sum(sizes) if sizes else None,
                bytes_per_s=sum(sizes) * 1e9 / sized if sizes and sized else None,
            )
        )
    return sorted(found, key=lambda one: (-one.total_ns, one.name))


def _gaps(rows: _Rows) -> list[GapFigures]:
    longest = sorted(rows, key=lambda row: (-row["duration_ns"], row["start_ns"]))[:_GAPS]
    names = ("rank", "device", "start_ns", "duration_ns", "cause", "operator", "thread", "next")
    return [GapFigures(**{name: row[name] for name in names}) for row in longest]


def _memory(rows: _Rows) -> list[AllocatorPeak]:
    """The highest point of each device's allocator over all windows."""
    grouped = _grouped(rows, ("rank", "device_type", "device"))
    return [
        AllocatorPeak(
            rank=rank,
            device_type=kind,
            device=device,
            allocated_bytes=_most(row["peak_bytes"] for row in grouped[rank, kind, device]),
            reserved_bytes=_most(row["reserved_bytes"] for row in grouped[rank, kind, device]),
        )
        for rank, kind, device in sorted(grouped)
    ]


def _most(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _grouped(rows: _Rows, keys: tuple[str, ...]) -> dict[tuple[Any, ...], _Rows]:
    found: dict[tuple[Any, ...], _Rows] = defaultdict(list)
    for row in rows:
        found[tuple(row[key] for key in keys)].append(row)
    return found
