"""Losses of a profiler window: missing or contradictory records, and the text that reports them.

A loss contains the kind of record, the number of affected records and of all records, the stream
and the time range. The verdict on the window is derived from all its losses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec.structs import replace

from otel_mlperf.store.window_facts import Loss, WindowCompleteness

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.kineto.counting.device_work import Work
    from otel_mlperf.store.window_facts import WholePart

TOLERATED_SHARE: Final = 0.001
"""Share of a kind of record that may be missing without being reported as a loss."""

KERNEL: Final = "kernel"
COPY: Final = "copy"
MEMSET: Final = "memset"
GRAPH: Final = "graph"
GRAPH_NODE: Final = "graph_node"
LAUNCH: Final = "launch"
CORRELATION: Final = "correlation"
DUPLICATE: Final = "duplicate"
EARLY: Final = "early"
LATE: Final = "late"
DEVICE_DURATION: Final = "device_duration"
HOST_DURATION: Final = "host_duration"
ARROW: Final = "arrow"
OPERATOR: Final = "operator"
ALLOCATION: Final = "allocation"
FRAME: Final = "frame"
FRAMES_END: Final = "frames_end"
HOST: Final = "host"
STEP: Final = "step"
RANKS: Final = "ranks"
TIMELESS: Final = "timeless"

LOST_WORK: Final = frozenset({KERNEL, COPY, MEMSET, GRAPH, GRAPH_NODE})
"""Kinds of loss that mean that launched device work has no record."""
TOUCHES_DEVICE: Final = LOST_WORK | {EARLY, LATE, DEVICE_DURATION, TIMELESS}
"""Kinds of loss that make the busy times of devices, and all figures derived from them, wrong."""
NUMBERED: Final = frozenset({CORRELATION, DUPLICATE, EARLY, LATE, ARROW, LAUNCH})
"""Kinds of loss that are derived from ids, so that the ids must be unique across ranks."""
_TEXTS: Final = {
    KERNEL: "launched kernels have no record",
    COPY: "launched copies have no record",
    MEMSET: "launched memsets have no record",
    GRAPH: "graph launches have no device record",
    GRAPH_NODE: "kernels of graph launches have no record",
    LAUNCH: "device records have no launch",
    CORRELATION: "device records have a wrong correlation id",
    DUPLICATE: "records occur twice",
    EARLY: "device records start before their launch",
    LATE: "device records end after the call that waited for them",
    DEVICE_DURATION: "device records have no duration",
    HOST_DURATION: "host records have no duration",
    ARROW: "flow arrows are missing",
    OPERATOR: "operators and annotations have no record",
    ALLOCATION: "allocations have no record",
    FRAME: "Python frames have no record",
    FRAMES_END: "operators run after the last recorded Python frame",
    HOST: "operators, annotations and allocations have no record",
    STEP: "steps have no annotation",
    TIMELESS: "device records have no usable time",
    RANKS: "device records belong to several ranks in one file, whose devices share a number",
}


def format_loss(loss: Loss, begin_ns: int) -> str:
    """Return a phrase that reports a loss; its times are in milliseconds since ``begin_ns``."""
    more = f": {loss.what}" if loss.what else ""
    begin, end = (f"{(at - begin_ns) / 1e6:,.1f}" for at in (loss.start_ns, loss.end_ns))
    when = f"between {begin} and {end} ms" if begin != end else f"at {begin} ms"
    if loss.of_part:
        is_all = loss.missing >= loss.of_part
        share = "all" if is_all else f"{100 * loss.missing / loss.of_part:.0f} % of the"
        when = f"{share} records {when}"
    where = "" if loss.stream is None else f"stream {loss.stream} of device {loss.device}, "
    return f"{loss.missing:,} of {loss.of:,} {_TEXTS[loss.kind]}{more} ({where}{when})"


def device_loss(
    kind: str,
    work: Work,
    lost: NDArray[np.bool_],
    share: float = TOLERATED_SHARE,
    what: str = "",
) -> list[Loss]:
    """Return the loss of the ``work`` that ``lost`` marks; [] if at most ``share`` is marked."""
    count, start = int(lost.sum()), work.start_ns
    if count <= share * len(lost):
        return []
    begin, end = int(start[lost].min()), int(start[lost].max())
    streams = np.unique(work.stream[lost]).tolist()
    device, stream = work.streams[streams[0]] if len(streams) == 1 else (None, None)
    there = int(((start >= begin) & (start <= end)).sum())
    return [Loss(kind, count, len(lost), begin, end, there, device, stream, what)]


def judge_window(
    launches: int, answered: int, losses: list[Loss], begin_ns: int, whole: WholePart | None
) -> WindowCompleteness:
    """Return the completeness of a window that starts at ``begin_ns``, from all its losses.

    ``answered`` is the number of ``launches`` that have a device record; ``whole`` is the part
    without missing records (None: no such part).
    """
    # Arrows do not affect the ratio, because no total depends on them. Mixed ranks lack no records.
    counted = [loss for loss in losses if loss.kind not in (ARROW, RANKS)]
    shares = [1 - loss.missing / loss.of for loss in counted if loss.of]
    shares += [answered / launches] if launches else []
    return WindowCompleteness(
        ratio=max(0.0, min(shares, default=1.0)),
        is_complete=not losses,
        has_device_times=not any(loss.kind in TOUCHES_DEVICE for loss in losses),
        launches=launches,
        answered=answered,
        losses=[replace(loss, words=format_loss(loss, begin_ns)) for loss in losses],
        whole=whole,
    )
