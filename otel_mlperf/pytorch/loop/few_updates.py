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
"""A direction and a difference of gradients for each iteration."""


def history_bytes(optimizer: Any) -> int:
    """Of all its groups, in the host's memory; 0 of an optimizer that keeps no history."""
    return sum(_of_group(group) for group in getattr(optimizer, "param_groups", ()))


def _of_group(group: dict[str, Any]) -> int:
    size = group.get("history_size")
    if not isinstance(size, int):
        return 0
    held: int = sum(one.numel() * one.element_size() for one in group["params"] if one.is_cpu)
    return _KEPT * size * held


EXCHANGE_PASSES: Final = (20, 200, 2_000)
"""Calls of a wrapped module at which it is asked; once takes 11 µs."""
WRAPPER: Final = "DistributedDataParallel"


def read_exchange(wrapper: Any) -> Iterator[tuple[names.Metric, float]]:
    """What it knows by now, as metrics and their values."""
    told = wrapper._get_ddp_logging_data()
    taken_ns = told.get("avg_backward_comm_time", 0)
    beside_ns = told.get("avg_backward_compute_comm_overlap_time", 0)
    if taken_ns:
        yield names.DDP_EXPOSED_COMMUNICATION, max(0.0, (taken_ns - beside_ns) / 1e9)
    # Made anew after the first pass, in the order in which gradients are ready.
    buckets = _sizes(told.get("rebuilt_bucket_sizes") or told.get("bucket_sizes") or "")
    if buckets:
        yield names.DDP_BUCKETS, len(buckets)
        yield names.DDP_GRADIENTS, sum(buckets)


def _sizes(text: str) -> list[int]:
    return [int(size) for size in text.split(",") if size.strip()]


UPDATES: Final = (2, 20, 200)
"""Updates of a run: the first one may be another."""


class FewUpdates:
    """Counts the updates of a run, and asks at some of them."""

    def __init__(self) -> None:
        self._recorder: Recorder | None = None
        self._updates = self._collectives = 0

    def begins(self, recorder: Recorder | None, optimizer: Any) -> None:
        """An update of this optimizer does, in this run."""
        if recorder is not self._recorder:
            self._recorder, self._updates = recorder, 0
        self._updates += 1
        if self._updates in UPDATES and recorder is not None:
            recorder.kept.pop(StepCollectives, None)  # by update it is known better
            _record(recorder, names.OPTIMIZER_HISTORY, history_bytes(optimizer))
            _record(recorder, names.COLLECTIVES, self._collectives_an_update())

    def _collectives_an_update(self) -> float:
        """Since it was asked first; 0.0 then."""
        counted, since = count_collectives(), self._updates - UPDATES[0]
        if not since:
            self._collectives = counted
        return (counted - self._collectives) / max(since, 1)


def _record(recorder: Recorder, metric: names.Metric, value: float) -> None:
    if value > 0:  # what there is none of would only take room
        recorder.cells.set(metric.name, metric.unit, value)
