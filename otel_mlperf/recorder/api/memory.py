"""Current memory of this process: resident, peak and CUDA."""

from __future__ import annotations

from dataclasses import dataclass

from otel_mlperf.recorder.core.faults import internal_error
from otel_mlperf.recorder.core.used_so_far import Counters


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of this process; None is what cannot be read."""

    resident_bytes: int | None = None
    """In RAM now."""
    peak_bytes: int | None = None
    """The most that has been so far."""
    cuda_allocated_bytes: int | None = None
    """What PyTorch's allocator has given out on the current device; None: no CUDA in use."""
    cuda_peak_bytes: int | None = None
    """The most of that, since it began or ``torch.cuda.reset_peak_memory_stats()``."""


_counters = Counters()


def memory() -> Memory:
    """The memory of this process now, with or without a run: resident, its peak, and CUDA's.

    From the kernel and PyTorch's own account, in some 10 µs; nothing waits for a device.
    ``readings()`` has what the agent read some seconds ago, of the host and the workers, too.
    """
    try:
        now = _counters.of_process()
    except Exception as error:  # noqa: BLE001 - recording never raises
        internal_error(error)
        return Memory()
    device = now.device
    return Memory(
        now.resident_bytes,
        now.peak_bytes or None,
        device.allocated_bytes if device else None,
        device.peak_bytes if device else None,
    )
