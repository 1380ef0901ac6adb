"""What was copied to, from and on each device, how much of it, and how fast?

Kineto names a copy by where it goes and by the kinds of memory: ``Memcpy HtoD (Pageable ->
Device)``. Bandwidth is bytes / time, over the copies whose size the trace tells; it is a mean over
all of them, so that many small ones lower it. A pageable copy is staged through a pinned buffer of
the driver: it is slower, and the host waits for it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_mlperf.kineto.counting.device_work import Kind
from otel_mlperf.kineto.trace_events import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.kineto.counting.device_work import Work
    from otel_mlperf.kineto.trace_events import Trace

SET: Final = "set"
OTHER: Final = "other"
_DIRECTIONS: Final = (
    ("H2D", r"HtoD|HtoA|HostToDevice|M2D\b|Host ?-> ?Device"),
    ("D2H", r"DtoH|AtoH|DeviceToHost|D2M\b|Device ?-> ?Host"),
    ("P2P", r"PtoP|PeerToPeer"),
    ("D2D", r"DtoD|DtoA|AtoD|AtoA|DeviceToDevice|D2D\b"),
    ("H2H", r"HtoH|HostToHost|M2M\b"),
    (SET, r"^Memset|Fill(?:Buffer)?\b"),
)


@dataclass(frozen=True, slots=True)
class Copies:
    """All copies or memsets of one name on one device."""

    device: int
    direction: str
    """H2D, D2H, D2D, P2P, H2H, set or other."""
    name: str
    pageable: bool
    count: int
    total_ns: int
    sized_ns: int
    """The time of those whose size is known."""
    bytes: int | None
    """None: no size is known."""


def count_copies(trace: Trace, work: Work) -> list[Copies]:
    """The copies and memsets by device and name, longest first."""
    rows = np.flatnonzero(work.kind == Kind.COPY)
    name = trace.events.name[work.rows[rows]]
    found = []
    for key in np.unique(np.stack([work.device[rows], name]), axis=1).T.tolist():
        mine = rows[(work.device[rows] == key[0]) & (name == key[1])]
        found.append(_copies(trace, work, mine, work.devices[key[0]], trace.names[key[1]]))
    return sorted(found, key=lambda one: (one.device, -one.total_ns, one.name))


def direction(name: str) -> str:
    """Where a copy goes, by its name as CUDA, ROCm and XPU give it."""
    for word, pattern in _DIRECTIONS:
        if re.search(pattern, name):
            return word
    return OTHER


def _copies(trace: Trace, work: Work, rows: NDArray[np.intp], device: int, name: str) -> Copies:
    size = trace.events.bytes[work.rows[rows]]
    length = work.end_ns[rows] - work.start_ns[rows]
    sized = size != NONE
    return Copies(
        device=device,
        direction=direction(name),
        name=name,
        pageable="pageable" in name.lower(),
        count=len(rows),
        total_ns=int(length.sum()),
        sized_ns=int(length[sized].sum()),
        bytes=int(size[sized].sum()) if sized.any() else None,
    )
