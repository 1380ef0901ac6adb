"""Figures read at a few updates of a run only: at each they would cost too much or change nothing.

These are the size that the memory of an optimizer may reach, the number of collectives of an
update, and what DDP reports of its gradient exchange.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names
from otel_mlperf.pytorch.loop.collective_count import StepCollectives, count_collectives

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_mlperf.recorder.lifecycle.recorder import Recorder


_KEPT: Final = 2
"""Two for each iteration: a direction and a difference of gradients."""


def history_bytes(optimizer: Any) -> int:
    """Return the size of all its groups in host memory; 0 for an optimizer without history."""
    return sum(_of_group(group) for group in getattr(optimizer, "param_groups", ()))


def _of_group(group: dict[str, Any]) -> int:
    size = group.get("history_size")
    if not isinstance(size, int):
        return 0
    held: int = sum(one.numel() * one.element_size() for one in group["params"] if one.is_cpu)
    return _KEPT * size * held


EXCHANGE_PASSES: Final = (20, 200, 2_000)
"""Calls of a wrapped module at which its figures are read; once costs 11 µs."""
WRAPPER: Final = "DistributedDataParallel"


def read_exchange(wrapper: Any) -> Iterator[tuple[names.Metric, float]]:
    """Yield the figures that the wrapper has by now, as metrics and their values."""
    told = wrapper._get_ddp_logging_data()
    taken_ns = told.get("avg_backward_comm_time", 0)
    beside_ns = told.get("avg_backward_compute_comm_overlap_time", 0)
    if taken_ns:
        yield names.DDP_EXPOSED_COMMUNICATION, max(0.0, (taken_ns - beside_ns) / 1e9)
    # Rebuilt after the first pass, in the order in which gradients are ready.
    buckets = _sizes(told.get("rebuilt_bucket_sizes") or told.get("bucket_sizes") or "")
    if buckets:
        yield names.DDP_BUCKETS, len(buckets)
        yield names.DDP_GRADIENTS, sum(buckets)


def _sizes(text: str) -> list[int]:
    return [int(size) for size in text.split(",") if size.strip()]


UPDATES: Final = (2, 20, 200)
"""Updates of a run at which figures are read: the first one may be atypical."""


class FewUpdates:
    """Counter of the updates of a run, which reads figures at some of them."""

    def __init__(self) -> None:
        self._recorder: Recorder | None = None
        self._updates = self._collectives = 0

    def begins(self, recorder: Recorder | None, optimizer: Any) -> None:
        """Count the start of an update of this optimizer, in this run."""
        if recorder is not self._recorder:
            self._recorder, self._updates = recorder, 0
        self._updates += 1
        if self._updates in UPDATES and recorder is not None:
            recorder.kept.pop(StepCollectives, None)  # the count by update is more precise
            _record(recorder, names.OPTIMIZER_HISTORY, history_bytes(optimizer))
            _record(recorder, names.COLLECTIVES, self._collectives_an_update())

    def _collectives_an_update(self) -> float:
        """Return the collectives per update since the first count; 0.0 at that one."""
        counted, since = count_collectives(), self._updates - UPDATES[0]
        if not since:
            self._collectives = counted
        return (counted - self._collectives) / max(since, 1)


def _record(recorder: Recorder, metric: names.Metric, value: float) -> None:
    if value > 0:  # zero values would only take space
        recorder.cells.set(metric.name, metric.unit, value)
