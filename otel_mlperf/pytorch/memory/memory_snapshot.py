"""Snapshot of PyTorch's CUDA allocator, block by block, on request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_mlperf.pytorch.memory.allocator import loaded_torch
from otel_mlperf.pytorch.memory.allocator_files import write_allocator
from otel_mlperf.recorder.api.span import active, is_compiling
from otel_mlperf.recorder.core.faults import internal_error

if TYPE_CHECKING:
    from pathlib import Path


def memory_snapshot(why: str = "asked for") -> Path | None:
    """Write the state of PyTorch's CUDA allocator into the run folder, now.

    The files are the same as when GPU memory runs out: a pickle for pytorch.org/memory_viz, a text
    and a JSON. With the setting ``cuda_memory_history``, or if the program has PyTorch keep it,
    the pickle contains the history of allocations, and the text the sections and lines with the
    most memory in use.

    Args:
        why: reason for writing it, stored in the text and in the JSON.

    Returns:
        The pickle; None if no run is active, the program uses no CUDA, or nothing can be written.
    """
    try:
        recorder = active()
        torch = None if recorder is None or is_compiling() else loaded_torch()
        if recorder is None or torch is None:
            return None
        return write_allocator(recorder, torch, str(why))
    except Exception as error:  # noqa: BLE001 - recording never raises
        internal_error(error)
        return None
