"""Merged traces of several ranks in one file, whose ids are made unique before linking.

Tools that merge ranks change only the process ids: correlations, External ids and arrow ids of all
ranks start at the same numbers. The host process of each rank is recognised by its calls. The rank
of a device process is determined by the first of these rules that applies:

- the tag in the process id (``[rank 1] 0``);
- the position in the file: the rank whose events are around the events of the process;
- the order: device processes are assigned to the ranks in order.

If lists of events were joined without changing process ids, ranks share device rows. Then each rank
gets rows of its own, by the order of the file.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_mlperf.kineto.linking.device_tracks import process_numbers
from otel_mlperf.kineto.linking.linked_events import IS_DEVICE, Role
from otel_mlperf.kineto.reading.value_columns import narrowed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from otel_mlperf.kineto.trace_events import Trace

_OFFSET: Final = 1 << 40
"""Offset between the ids of two ranks, which is higher than any id of any profiler."""
_MAX_RANKS: Final = 1 << 12
_LONGEST_PID: Final = 256
_LAST_NUMBER: Final = re.compile(r"-?\d+\W*$")


def split_shared_rows(trace: Trace, roles: NDArray[np.uint8]) -> None:
    """Add rows to ``trace`` so that no device row of the timeline is shared by several ranks.

    In the file, a rank's device events are located after the first event of its host process.
    """
    hosts = _hosts(trace, roles)
    firsts = _places_of_ranks(trace, hosts) if hosts else []
    if not firsts:
        return
    rows = np.flatnonzero(np.isin(roles, IS_DEVICE))
    rank = np.maximum(np.searchsorted(firsts, rows, "right") - 1, 0)
    track = trace.events.track.astype(np.int64)
    pairs, place = np.unique(np.stack([track[rows], rank]), axis=1, return_inverse=True)
    moved = {}
    for at, (of, its_rank) in enumerate(pairs.T.tolist()):
        if at and of == pairs[0, at - 1]:  # An earlier rank keeps the row.
            old = trace.tracks[of]
            trace.tracks.append(old._replace(pid=f"{old.pid} [rank {its_rank}]"))
            moved[of, its_rank] = len(trace.tracks) - 1
    if not moved:
        return
    new = [moved.get((of, its_rank), of) for of, its_rank in pairs.T.tolist()]
    track[rows] = np.array(new, np.int64)[place.reshape(-1)]
    trace.events.track = narrowed(track)
    trace.flows.track = _moved_flows(trace, hosts, moved)


def _moved_flows(
    trace: Trace, hosts: dict[str, int], moved: dict[tuple[int, int], int]
) -> NDArray[np.signedinteger[Any]]:
    track = trace.flows.track.astype(np.int64)
    rank_of = {pid: at for at, pid in enumerate(hosts)}
    of_track = np.array([rank_of.get(one.pid, 0) for one in trace.tracks], np.int64)
    rank = np.maximum.accumulate(of_track[track]) if len(track) else track
    for (of, its_rank), new in moved.items():
        track[(trace.flows.track == of) & (rank == its_rank)] = new
    return narrowed(track)


def are_mixed(trace: Trace, roles: NDArray[np.uint8]) -> bool:
    """Return whether ranks share device rows and their events are not in order of rank."""
    hosts = _hosts(trace, roles)
    devices = _first_rows(trace, [track.pid for track in trace.tracks], roles == Role.DEVICE)
    return 0 < len(devices.keys() - hosts.keys()) < len(hosts) and not _places_of_ranks(
        trace, hosts
    )


def make_ids_unique(trace: Trace, roles: NDArray[np.uint8]) -> Trace:
    """Return the trace with ids that are unique across ranks; unchanged if there is one rank."""
    rank_of = _ranks_of_tracks(trace, roles)
    if rank_of is None:
        return trace
    events, flows = trace.events, trace.flows
    own = rank_of[events.track] * _OFFSET
    moved = replace(
        events,
        correlation=_moved(events.correlation, own),
        external=_moved(events.external, own),
        sequence=_moved(events.sequence, own),
    )
    ids = flows.id.astype(np.int64) + rank_of[flows.track] * _OFFSET
    return replace(trace, events=moved, flows=replace(flows, id=ids))


def _moved(
    column: NDArray[np.signedinteger[Any]], offset: NDArray[np.int64]
) -> NDArray[np.signedinteger[Any]]:
    return np.where(column > 0, column.astype(np.int64) + offset, column)


def _ranks_of_tracks(trace: Trace, roles: NDArray[np.uint8]) -> NDArray[np.int64] | None:
    """Return the rank index of each row of the timeline; None if the file has only one rank."""
    hosts = _hosts(trace, roles)
    if not hosts:
        return None
    pids = [track.pid for track in trace.tracks]
    devices = _first_rows(trace, pids, np.isin(roles, IS_DEVICE))
    devices = {pid: row for pid, row in devices.items() if pid not in hosts}
    rank_of = {pid: at for at, pid in enumerate(hosts)}
    rank_of |= _by_tag(list(hosts), list(devices)) or _by_place(trace, pids, hosts, devices)
    return np.array([rank_of.get(pid, 0) for pid in pids], np.int64)


def _hosts(trace: Trace, roles: NDArray[np.uint8]) -> dict[str, int]:
    """Return the row of the first call of each rank's host process; empty if there is one rank."""
    calls = (roles == Role.CALL) & (trace.events.correlation > 0)
    hosts = _first_rows(trace, [track.pid for track in trace.tracks], calls)
    are_ranks = 1 < len(hosts) <= _MAX_RANKS and _share_numbers(trace, calls)
    return hosts if are_ranks else {}


def _share_numbers(trace: Trace, calls: NDArray[np.bool_]) -> bool:
    process = process_numbers(trace.tracks)[trace.events.track[calls]]
    number = trace.events.correlation[calls].astype(np.int64)
    both = np.unique(np.stack([number, process]), axis=1)
    return bool((np.diff(both[0]) == 0).any())


def _first_rows(trace: Trace, pids: list[str], wanted: NDArray[np.bool_]) -> dict[str, int]:
    tracks, first = np.unique(trace.events.track[np.flatnonzero(wanted)], return_index=True)
    rows = np.flatnonzero(wanted)[first]
    found: dict[str, int] = {}
    for row, track in sorted(zip(rows.tolist(), tracks.tolist(), strict=True)):
        found.setdefault(pids[track], row)
    return found


def _by_tag(hosts: list[str], devices: list[str]) -> dict[str, int]:
    tags = {_tag(pid): at for at, pid in enumerate(hosts)}
    if len(tags) < len(hosts):
        return {}
    of = {pid: tags.get(_tag(pid)) for pid in devices}
    return {pid: at for pid, at in of.items() if at is not None} if None not in of.values() else {}


def _tag(pid: str) -> str:
    return _LAST_NUMBER.sub("", pid) if len(pid) <= _LONGEST_PID else pid


def _by_place(
    trace: Trace, pids: list[str], hosts: dict[str, int], devices: dict[str, int]
) -> dict[str, int]:
    if firsts := _places_of_ranks(trace, hosts):
        middles = [np.median(rows) for rows in _rows_of(trace, pids, devices)]
        ranks = np.maximum(np.searchsorted(firsts, middles, "right") - 1, 0)
        return dict(zip(devices, ranks.tolist(), strict=True))
    each = max(1, -(-len(devices) // len(hosts)))
    return {pid: at // each for at, pid in enumerate(devices)}


def _places_of_ranks(trace: Trace, hosts: dict[str, int]) -> list[int]:
    rows = _rows_of(trace, [track.pid for track in trace.tracks], hosts)
    ends = [(int(of_rank[0]), int(of_rank[-1])) for of_rank in rows]
    is_apart = all(before[1] < after[0] for before, after in pairwise(ends))
    return [first for first, _ in ends] if is_apart else []


def _rows_of(trace: Trace, pids: list[str], processes: Iterable[str]) -> Iterator[NDArray[np.intp]]:
    numbers = process_numbers(trace.tracks)
    codes, number_of = numbers[trace.events.track], dict(zip(pids, numbers.tolist(), strict=True))
    return (np.flatnonzero(codes == number_of[pid]) for pid in processes)
