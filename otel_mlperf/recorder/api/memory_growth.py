"""The public calls ``memory_point`` and ``memory_growth``, for growing objects and allocations."""

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
_MAX_STORED: Final = 500
"""Maximum number of stored results per recording; limits the file to some megabytes."""
_NOTHING: Final = "nothing was recorded at one of the two points"
_FAILED: Final = "the growth could not be computed: see the log"
_NO_TENSORS: Final = "tensors: this version of PyTorch does not report their storage"
_NO_SITES: Final = (
    "allocation sites: tracemalloc is off; the first memory_growth() of a point stops it"
)
_Counts = dict[str, list[int]]
"""Count and bytes by name."""
_Process = tuple[int | None, int | None]
"""Resident bytes, and bytes that PyTorch's allocator has allocated on the current device."""


class MemoryPoint:
    """Point in time for ``memory_growth()``; created by ``memory_point()``."""

    __slots__ = ("counted", "process", "sites", "step", "unix_ns")

    def __init__(self) -> None:
        self.counted = b""
        """Encoded counts of types and tensors; empty: nothing was recorded.

        Encoded as bytes, because the objects of a dictionary would be counted themselves.
        """
        self.process: _Process = (None, None)
        self.sites: AllocationSites | None = None
        self.step = self.unix_ns = 0


def memory_point(*, sites: bool = False) -> MemoryPoint:
    """Count the objects that exist now, for a later ``memory_growth()``; never raises.

    ::

        point = om.memory_point()
        train_an_epoch()
        print(om.memory_growth(point))

    The call costs one or two microseconds for each object of the process. No object is modified.

    Args:
        sites: use tracemalloc to find the lines whose allocations are not freed. Until
            ``memory_growth()`` or the end of the run, Python's allocations then last several times
            as long, and steps are flagged as slowed down by a profiler.
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

    The result is printed as a table; ``rows`` contains the largest growth of each kind. It is
    stored in the run folder, and ``otel-mlperf summary --functions`` shows it. Never raises; while
    nothing is recorded, the result is empty.

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

    # Import first: otherwise the memory of imported modules would count as growth.
    from otel_mlperf.run_files import growth_file  # noqa: F401

    new_sites = AllocationSites() if sites else None
    _slow_down(recorder)
    point.counted = msgspec.msgpack.encode(_count([]))
    # After counting, so that memory allocated by it is not counted as growth.
    point.process, point.step = _process(), recorder.stepping.next_number()
    point.unix_ns = time.time_ns()
    if new_sites is not None:
        point.sites = new_sites
        recorder.at_retire.append(new_sites.end)
        recorder.stepping.note_profiler(new_sites, is_on=True)
        new_sites.begin()


def _grown(since: MemoryPoint, recorder: Recorder) -> MemoryGrowth:
    import msgspec

    from otel_mlperf.run_files.growth_file import MemoryGrowth

    now, missing = _process(), list[str]()
    # First, because the following code allocates, too.
    before, sites_now = _finish_sites(since, recorder, missing)
    _slow_down(recorder)
    types, tensors = _count(missing)
    types_then, tensors_then = msgspec.msgpack.decode(since.counted, type=tuple[_Counts, _Counts])
    parts = [
        [*_by_name("type", types_then, types)],
        [*_by_name("tensor", tensors_then, tensors)],
        [*_by_line(before, sites_now)],
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
    _store(growth, recorder)
    return growth


def _process() -> _Process:
    now = memory()
    return now.resident_bytes, now.cuda_allocated_bytes


def _slow_down(recorder: Recorder) -> None:
    """Flag the open steps as slowed down by a profiler."""
    for step in list(recorder.stepping.open.values()):
        extra_of(step.section).flags |= _PROFILED


def _count(missing: list[str]) -> tuple[_Counts, _Counts]:
    """Return the counts of objects by type, and of tensors' storages by description."""
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


def _finish_sites(
    since: MemoryPoint, recorder: Recorder, missing: list[str]
) -> tuple[bytes, bytes]:
    """Stop tracing, and return encoded allocations by line at the point and now."""
    sites = since.sites
    if sites is None:
        return b"", b""
    try:
        sites_now = sites.look()
    finally:
        sites.end()
        recorder.stepping.note_profiler(sites, is_on=False)
        with contextlib.suppress(ValueError):  # already removed, or of an earlier recording
            recorder.at_retire.remove(sites.end)
    if not sites_now:
        missing.append(_NO_SITES)
    return sites.before, sites_now


def _by_name(what: What, then: _Counts, now: _Counts) -> Iterator[GrowthRow]:
    for name, counted in now.items():
        yield from _row(counted, then.get(name, (0, 0)), what=what, name=name)


def _by_line(before: bytes, encoded_now: bytes) -> Iterator[GrowthRow]:
    from otel_mlperf.recorder.instruments.allocation_sites import read_sites

    then = read_sites(before)
    for (file, line), now in read_sites(encoded_now).items():
        yield from _row(now, then.get((file, line), (0, 0)), what="site", file=file, line=line)


def _row(now: Sequence[int], then: Sequence[int], **about: Any) -> Iterator[GrowthRow]:
    """Yield a row if count or bytes have grown."""
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


def _store(growth: MemoryGrowth, recorder: Recorder) -> None:
    """Append the growth to a file in the run folder."""
    from otel_mlperf.run_files.growth_file import append_growth

    kept: dict[type, Any] = recorder.kept
    number = kept[MemoryPoint] = kept.get(MemoryPoint, 0) + 1
    if number > _MAX_STORED:
        warn_once(
            "memory_growth(): only the first %s results of a process are stored in the run folder",
            _MAX_STORED,
        )
        return
    try:
        append_growth(recorder.meta.run_folder, recorder.meta.pid, growth)
    except OSError as error:
        raise_foreign(error)
        warn_once("the result of memory_growth() cannot be stored: %s", error)
