"""What does DDP exchange in a backward pass, and how long does that wait for it, as it says itself?

Its collectives go on in C++, inside the backward pass, where no function of Python can be seen. DDP
times them in its first ten passes and in each hundredth, and knows the buckets in which gradients
go: it is only asked, at three passes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names

if TYPE_CHECKING:
    from collections.abc import Iterator

ASKED: Final = (20, 200, 2_000)
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
