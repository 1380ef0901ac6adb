"""Growth of the memory of PyTorch's CUDA allocator during a section.

The growth is measured only on request, because the allocator's statistics are read before and after
the section. torch's peak counts since the start of the process. The peak of a section is therefore
known only if it is the highest so far, or if the caller allows a reset of torch's peak.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_mlperf import names
from otel_mlperf.pytorch.memory.allocator import loaded_torch
from otel_mlperf.recorder.api.span import active, is_compiling
from otel_mlperf.recorder.core.faults import internal_error

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


class CudaMemory:
    """Context manager that ``cuda_memory()`` returns."""

    def __init__(
        self, *, reset_peak: bool = False, find_torch: Callable[[], Any] = loaded_torch
    ) -> None:
        self._is_reset, self._find_torch = reset_peak, find_torch
        self._device: int | None = None
        self._before: tuple[int, int] | None = None
        """Allocated bytes and peak at the start; None: not read."""

    def __enter__(self) -> CudaMemory:
        self._device = self._before = None
        try:
            if active() is not None and not is_compiling():
                self._begin()
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if active() is not None and not is_compiling():
                self._end()
        except Exception as problem:  # noqa: BLE001 - recording never raises
            internal_error(problem)

    def _begin(self) -> None:
        torch = self._find_torch()
        if torch is None:
            self._before = (0, 0)  # CUDA has not been initialised
            return
        self._device = torch.cuda.current_device()
        if self._is_reset:
            torch.cuda.reset_peak_memory_stats(self._device)
        self._before = _allocated(torch, self._device)

    def _end(self) -> None:
        recorder, torch = active(), self._find_torch()
        section = recorder.parents.surrounding()[0] if recorder is not None else None
        if torch is None or section is None or self._before is None:
            return
        # If CUDA was initialised inside the section, the device is known only now, and nothing was
        # allocated at the start.
        device = torch.cuda.current_device() if self._device is None else self._device
        (before, peak_before), (after, peak) = self._before, _allocated(torch, device)
        grown = {names.CUDA_MEMORY_DELTA: after - before}
        if peak > peak_before or self._is_reset:
            grown[names.CUDA_MEMORY_PEAK] = peak
        section.set(**grown)


def cuda_memory(*, reset_peak: bool = False) -> CudaMemory:
    """Record the GPU memory growth of a section: ``with om.span("forward"), om.cuda_memory():``.

    The section's attributes contain the growth of the allocated memory on the current device. They
    also contain the peak during the section, if this peak is the highest so far.

    Args:
        reset_peak: reset torch's peak first, so that the section's peak is always known;
            ``torch.cuda.max_memory_allocated()`` then counts from the
            start of the section.
    """
    return CudaMemory(reset_peak=reset_peak)


def _allocated(torch: Any, device: int) -> tuple[int, int]:
    account = torch.cuda.memory_stats_as_nested_dict(device)
    size = account["allocated_bytes"]["all"] if account else {"current": 0, "peak": 0}
    return size["current"], size["peak"]
