"""Switch that enables GPU stamps once the program has initialised CUDA.

This module never initialises CUDA. Until the program does so, no code of the stamps is loaded, and
sections are entered as if stamps did not exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_mlperf.recorder.api.start import at_begin
from otel_mlperf.recorder.core.faults import internal_error
from otel_mlperf.recorder.core.thread_ident import get_ident
from otel_mlperf.recorder.core.used_so_far import loaded_cuda
from otel_mlperf.recorder.sections.section_context import extra_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.pytorch.gpu_time.gpu_stamps import GpuStamps
    from otel_mlperf.recorder.lifecycle.recorder import Recorder
    from otel_mlperf.recorder.lifecycle.run import Run


class Switch:
    """Switch that creates the GPU stamps of one recording when CUDA is initialised.

    Args:
        recorder: recorder of the run.
        find_cuda: returns ``torch.cuda``, or None until CUDA is initialised.
        make: creates the stamps for a recorder, given ``torch.cuda``.
    """

    def __init__(
        self,
        recorder: Recorder,
        find_cuda: Callable[[], Any] = loaded_cuda,
        make: Callable[[Recorder, Any], GpuStamps] | None = None,
    ) -> None:
        self._recorder, self._find_cuda, self._make = recorder, find_cuda, make
        self._thread = get_ident()
        self.stamps: GpuStamps | None = None

    def look(self, now_ns: int = 0) -> None:
        """If CUDA is initialised, enable stamps, and stamp the step that starts at ``now_ns``."""
        if self.stamps is not None or get_ident() != self._thread:
            return
        try:
            cuda = self._find_cuda()
            if cuda is not None:
                self._switch_on(cuda, now_ns)
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)

    def _switch_on(self, cuda: Any, now_ns: int) -> None:
        self.stamps = self._recorder.sections.stamps = self._made(cuda)
        categories = self._recorder.config.gpu_time_categories.split(",")
        self._recorder.registry.stamp_on_device(categories)
        for step in list(self._recorder.parents.steps.values()):
            if step.section.t0 == now_ns:
                extra_of(step.section).stamp = self.stamps.begin()

    def finish(self) -> None:
        """Report the remaining stamps at the end of the run, if stamps were enabled."""
        if self.stamps is not None:
            self.stamps.finish()

    def _made(self, cuda: Any) -> GpuStamps:
        if self._make is not None:
            return self._make(self._recorder, cuda)
        from otel_mlperf.pytorch.gpu_time.captures import watch_captures
        from otel_mlperf.pytorch.gpu_time.gpu_stamps import GpuStamps

        return GpuStamps(self._recorder, cuda, captures=watch_captures(cuda))


def _begin(run: Run) -> None:
    recorder = run._recorder
    if recorder is not None and recorder.config.gpu_time_categories:
        switch = Switch(recorder)
        recorder.stepping.now_and_then.append(switch.look)
        recorder.registry.at_new_name.append(switch.look)
        run.before_end.append(switch.finish)


at_begin.append(_begin)
