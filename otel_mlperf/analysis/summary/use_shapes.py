"""Data types of the resource use of sections and processes, as ``--json`` prints them."""

from __future__ import annotations

import msgspec


class UseFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One measure of all calls of a section in which it was known, exact."""

    count: int
    total: int
    mean: float
    least: int
    most: int
    variance: float
    """Mean square of the distance from the mean."""


class SectionUse(msgspec.Struct, frozen=True, kw_only=True):
    """What the calls of one section used at one place, on all ranks, with what is inside."""

    name: str
    category: str
    phase: str
    path: str
    """Outside steps, names from below the run."""
    in_step: bool
    beside: bool
    """On another thread or task than what is around."""
    calls: int
    """Those that were measured."""
    figures: dict[str, UseFigures]
    """By ``cpu_ns``, ``voluntary_switches``, ``involuntary_switches``, ``read_bytes``,
    ``written_bytes`` (of the thread), ``memory_before_bytes``, ``memory_after_bytes``,
    ``memory_growth_bytes``, ``memory_peak_bytes``, ``cuda_growth_bytes``, ``cuda_peak_bytes`` (of
    the process), ``gpu_ns`` (from its begin to its end on the GPU); what no call knew is absent."""


class ProcessUse(msgspec.Struct, frozen=True, kw_only=True):
    """What the training processes used; their workers only where a field says so."""

    cpus: float
    """CPU time of all threads / time; of several processes the mean."""
    memory_peak_bytes: int
    """The most that was resident, of the process that had most."""
    workers_peak_bytes: int | None
    """The most that was resident in all workers of one rank together; None: no worker was read."""
    cuda_peak_bytes: int | None
    """The most that PyTorch's allocator had given out on one device; None: no CUDA."""
