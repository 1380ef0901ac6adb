"""Data types of the resource use of sections and processes, as ``--json`` prints them."""

from __future__ import annotations

import msgspec


class UseFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of one measure over all calls of a section with a known value, exact."""

    count: int
    total: int
    mean: float
    least: int
    most: int
    variance: float
    """Mean square of the distance from the mean."""


class SectionUse(msgspec.Struct, frozen=True, kw_only=True):
    """Resource use of one section's calls at one place, on all ranks, with nested sections."""

    name: str
    category: str
    phase: str
    path: str
    """For calls outside steps: section names from below the run."""
    in_step: bool
    beside: bool
    """Whether on another thread or task than its surroundings."""
    calls: int
    """Number of measured calls."""
    figures: dict[str, UseFigures]
    """Statistics of ``cpu_ns``, ``voluntary_switches``, ``involuntary_switches``, ``read_bytes``,
    ``written_bytes`` (of the thread), ``memory_before_bytes``, ``memory_after_bytes``,
    ``memory_growth_bytes``, ``memory_peak_bytes``, ``cuda_growth_bytes``, ``cuda_peak_bytes`` (of
    the process) and ``gpu_ns`` (from start to end on the GPU). Measures that no call has are
    absent."""


class ProcessUse(msgspec.Struct, frozen=True, kw_only=True):
    """Resource use of the training processes; their workers only where a field mentions them."""

    cpus: float
    """CPU time of all threads divided by time; mean over the processes."""
    memory_peak_bytes: int
    """Peak resident memory of the largest process."""
    workers_peak_bytes: int | None
    """Peak resident memory of all workers of one rank together; None: no worker was read."""
    cuda_peak_bytes: int | None
    """Peak memory that PyTorch's allocator had allocated on one device; None: no CUDA."""
