"""Memory growth of this process since an earlier point: objects, tensors, allocated memory."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf.foreign_errors import raise_foreign
from otel_mlperf.journal.layout import Flag
from otel_mlperf.recorder.api.memory import memory
from otel_mlperf.recorder.api.span import active, is_compiling
from otel_mlperf.recorder.core.faults import internal_error, warn_once
from otel_mlperf.recorder.sections.section_context import extra_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_mlperf.recorder.instruments.allocation_sites import AllocationSites
    from otel_mlperf.recorder.lifecycle.recorder import Recorder
    from otel_mlperf.run_files.growth_file import GrowthRow, MemoryGrowth, What

_PROFILED: Final = int(Flag.PROFILED)
_MOST_ROWS: Final = 50
_MOST_KEPT: Final = 500
"""Limit per recording: some megabytes."""
_NOTHING: Final = "nothing was recorded at one of the two points"
_FAILED: Final = "the growth could not be computed: see the log"
_NO_TENSORS: Final = "tensors: this version of PyTorch does not report their storage"
_NO_SITES: Final = (
    "allocation sites: tracemalloc is off; the first memory_growth() of a point stops it"
)
_Counts = dict[str, list[int]]
"""Count and bytes by name."""
_Process = tuple[int | None, int | None]
"""Resident bytes, and bytes allocated by PyTorch's allocator on the current device."""


class MemoryPoint:
    """A point in time since which ``memory_growth()`` counts; made by ``memory_point()``."""

    __slots__ = ("counted", "process", "sites", "step", "unix_ns")

    def __init__(self) -> None:
        self.counted = b""
        """Types, then tensors; empty: nothing was recorded. Bytes, because the objects of a
        dictionary would be counted.
        """
        self.process: _Process = (None, None)
        self.sites: AllocationSites | None = None
        self.step = self.unix_ns = 0


def memory_point(*, sites: bool = False) -> MemoryPoint:
    """Note which objects exist now, for ``memory_growth()`` later; never raises.

    ::

        point = om.memory_point()
        train_an_epoch()
        print(om.memory_growth(point))

    It costs a microsecond or two for each object of the process, and changes none of them.

    Args:
        sites: whether also to determine which lines allocate what stays, by tracemalloc: until
            ``memory_growth()`` or the end of the run Python's allocations take several times as
            long, and the steps count as slowed down by a profiler.
    """
    point = MemoryPoint()
    try:
        recorder = None if is_compiling() else active()
        if recorder is not None:
            _note(point, recorder, sites=sites)
    except Exception as error:  # noqa: BLE001 - recording never raises
        internal_error(error)
    return point


def memory_growth(since: MemoryPoint) -> MemoryGrowth:
    """Return the growth since a point: objects by type, tensors, allocations by line.

    Printed it is a table; ``rows`` contains all that has grown. It is stored in the run folder,
    where ``otel-mlperf summary --functions`` shows it. Never raises; if nothing is recorded it is
    empty.

    Args:
        since: the result of ``memory_point()``.
    """
    from otel_mlperf.run_files.growth_file import MemoryGrowth

    try:
        if is_compiling():
            return MemoryGrowth(missing=[_NOTHING])
        if not _is_point(since):
            return MemoryGrowth(missing=["no memory_point() was passed"])
        recorder = active()
        if recorder is None or not since.counted:
            return MemoryGrowth(missing=[_NOTHING])
        return _grown(since, recorder)
    except Exception as error:  # noqa: BLE001 - recording never raises
        internal_error(error)
        return MemoryGrowth(missing=[_FAILED])


def _is_point(given: Any) -> bool:
    is_one = isinstance(given, MemoryPoint)
    if not is_one:
        warn_once("memory_growth(%s): expected a memory_point()", type(given).__name__)
    return is_one


def _note(point: MemoryPoint, recorder: Recorder, *, sites: bool) -> None:
    import msgspec

    from otel_mlperf.recorder.instruments.allocation_sites import AllocationSites

    # First: otherwise the memory of loaded modules would count as growth by the next point.
    from otel_mlperf.run_files import growth_file  # noqa: F401

    asked = AllocationSites() if sites else None
    _slow_down(recorder)
    point.counted = msgspec.msgpack.encode(_count([]))
    # After it: the memory of counting is no growth.
    point.process, point.step = _process(), recorder.stepping.next_number()
    point.unix_ns = time.time_ns()
    if asked is not None:
        point.sites = asked
        recorder.at_retire.append(asked.end)
        recorder.stepping.note_profiler(asked, is_on=True)
        asked.begin()


def _grown(since: MemoryPoint, recorder: Recorder) -> MemoryGrowth:
    import msgspec

    from otel_mlperf.run_files.growth_file import MemoryGrowth

    now, missing = _process(), list[str]()
    # First: the following code allocates, too.
    before, seen = _look_at_sites(since, recorder, missing)
    _slow_down(recorder)
    types, tensors = _count(missing)
    types_then, tensors_then = msgspec.msgpack.decode(since.counted, type=tuple[_Counts, _Counts])
    parts = [
        [*_by_name("type", types_then, types)],
        [*_by_name("tensor", tensors_then, tensors)],
        [*_by_line(before, seen)],
    ]
    for rows in parts:
        rows.sort(key=lambda row: (-row.bytes, -row.count, row.name))
    then, meta = since.process, recorder.meta
    growth = MemoryGrowth(
        rank=meta.rank,
        restart=meta.restart,
        begin_ns=since.unix_ns,
        end_ns=time.time_ns(),
        steps=max(0, recorder.stepping.next_number() - since.step),
        count=_total(types, 0) - _total(types_then, 0),
        bytes=_total(types, 1) - _total(types_then, 1),
        tensor_bytes=_total(tensors, 1) - _total(tensors_then, 1),
        resident_bytes=_more(then[0], now[0]),
        cuda_bytes=_more(then[1], now[1]),
        rows=[row for rows in parts for row in rows[:_MOST_ROWS]],
        more=sum(len(rows[_MOST_ROWS:]) for rows in parts),
        missing=missing,
    )
    _keep(growth, recorder)
    return growth


def _process() -> _Process:
    now = memory()
    return now.resident_bytes, now.cuda_allocated_bytes


def _slow_down(recorder: Recorder) -> None:
    """Mark the open steps as slowed down, as a profiler would."""
    for step in list(recorder.stepping.open.values()):
        extra_of(step.section).flags |= _PROFILED


def _count(missing: list[str]) -> tuple[_Counts, _Counts]:
    """Count objects by type, and the memory of tensors by content."""
    from otel_mlperf.recorder.instruments.live_objects import LiveObjects
    from otel_mlperf.recorder.instruments.live_tensors import HANDLE, count_tensors

    objects, tensors = LiveObjects(MemoryPoint), {}
    types = objects.count()
    types.pop(HANDLE, None)
    try:
        if objects.tensors:
            tensors = count_tensors(objects.tensors)
    except Exception as error:  # noqa: BLE001 - another PyTorch than those that are known
        raise_foreign(error)
        missing.append(_NO_TENSORS)
    return types, tensors


def _look_at_sites(
    since: MemoryPoint, recorder: Recorder, missing: list[str]
) -> tuple[bytes, bytes]:
    """Return the allocations by line at the point and now, and stop tracing."""
    sites = since.sites
    if sites is None:
        return b"", b""
    try:
        seen = sites.look()
    finally:
        sites.end()
        recorder.stepping.note_profiler(sites, is_on=False)
        with contextlib.suppress(ValueError):  # removed before, or of an earlier recording
            recorder.at_retire.remove(sites.end)
    if not seen:
        missing.append(_NO_SITES)
    return sites.before, seen


def _by_name(what: What, then: _Counts, now: _Counts) -> Iterator[GrowthRow]:
    for name, counted in now.items():
        yield from _row(counted, then.get(name, (0, 0)), what=what, name=name)


def _by_line(before: bytes, seen: bytes) -> Iterator[GrowthRow]:
    from otel_mlperf.recorder.instruments.allocation_sites import read_sites

    then = read_sites(before)
    for (file, line), now in read_sites(seen).items():
        yield from _row(now, then.get((file, line), (0, 0)), what="site", file=file, line=line)


def _row(now: Sequence[int], then: Sequence[int], **about: Any) -> Iterator[GrowthRow]:
    """Yield a row if something has grown, else nothing."""
    from otel_mlperf.run_files.growth_file import GrowthRow

    (count, size), (count_then, size_then) = now, then
    if count > count_then or size > size_then:
        yield GrowthRow(
            **about,
            count=count - count_then,
            bytes=size - size_then,
            now_count=count,
            now_bytes=size,
        )


def _total(counts: _Counts, at: int) -> int:
    return sum(of[at] for of in counts.values())


def _more(then: int | None, now: int | None) -> int | None:
    return None if then is None or now is None else now - then


def _keep(growth: MemoryGrowth, recorder: Recorder) -> None:
    """Write the growth to the run folder."""
    from otel_mlperf.run_files.growth_file import append_growth

    kept: dict[type, Any] = recorder.kept
    number = kept[MemoryPoint] = kept.get(MemoryPoint, 0) + 1
    if number > _MOST_KEPT:
        warn_once(
            "memory_growth(): only the first %s results of a process are stored in the run folder",
            _MOST_KEPT,
        )
        return
    try:
        append_growth(recorder.meta.run_folder, recorder.meta.pid, growth)
    except OSError as error:
        raise_foreign(error)
        warn_once("the result of memory_growth() cannot be stored: %s", error)
