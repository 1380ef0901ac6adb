"""Current memory of this process: resident, peak and CUDA."""

from __future__ import annotations

from dataclasses import dataclass

from otel_mlperf.recorder.core.faults import internal_error
from otel_mlperf.recorder.core.used_so_far import Counters


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of this process; None: cannot be read."""

    resident_bytes: int | None = None
    """Current resident memory."""
    peak_bytes: int | None = None
    """Peak of resident memory so far."""
    cuda_allocated_bytes: int | None = None
    """Memory allocated by PyTorch's allocator on the current device; None: no CUDA in use."""
    cuda_peak_bytes: int | None = None
    """Peak of that since the start, or since ``torch.cuda.reset_peak_memory_stats()``."""


_counters = Counters()


def memory() -> Memory:
    """Return the memory of this process now, with or without a run: resident, peak and CUDA.

    The values come from the kernel and PyTorch's own statistics, in some 10 µs; nothing waits for a
    device. ``readings()`` contains what the agent read some seconds ago, including host and
    workers.
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
