"""Current memory of this process: resident, peak and CUDA."""

from __future__ import annotations

from dataclasses import dataclass

from otel_mlperf.recorder.core.faults import internal_error
from otel_mlperf.recorder.core.used_so_far import Counters


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of this process; None: the value cannot be read."""

    resident_bytes: int | None = None
    """Current resident memory."""
    peak_bytes: int | None = None
    """Peak of resident memory so far."""
    cuda_allocated_bytes: int | None = None
    """Memory allocated by PyTorch's allocator on the current device; None: no CUDA in use."""
    cuda_peak_bytes: int | None = None
    """Peak of ``cuda_allocated_bytes`` since the process started, or since
    ``torch.cuda.reset_peak_memory_stats()``.
    """


_counters = Counters()


def memory() -> Memory:
    """Return the current memory of this process, also without a run: resident, peak and CUDA.

    The values come from the kernel and PyTorch's own statistics. The call costs some 10 µs and does
    not wait for a device. ``readings()`` returns the agent's readings of some seconds ago, which
    include the host and workers.
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
