"""How long does a backward pass wait for DDP's collectives, as DDP itself has timed it?

They go on in C++, inside the backward pass, where no function of Python can be seen. DDP times them
in its first ten passes and in each hundredth; it is only asked for the mean, at three passes.
"""

from __future__ import annotations

from typing import Any, Final

ASKED: Final = (20, 200, 2_000)
"""Calls of a wrapped module at which it is asked; once takes 10 µs."""
WRAPPER: Final = "DistributedDataParallel"


def exposed_s(wrapper: Any) -> float | None:
    """Time of a backward pass in which they alone went on; None: DDP has timed none."""
    told = wrapper._get_ddp_logging_data()
    taken_ns = told.get("avg_backward_comm_time", 0)
    beside_ns = told.get("avg_backward_compute_comm_overlap_time", 0)
    return max(0.0, (taken_ns - beside_ns) / 1e9) if taken_ns else None
