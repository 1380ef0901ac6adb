"""Dump of the CUDA allocator's state when the program runs out of GPU memory.

When the exception leaves its first section, torch's information about the allocator is written to
the run folder, and the section names the file. The exception is passed on unchanged.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names
from otel_mlperf.pytorch.memory.allocator_files import FOLDER, write_allocator
from otel_mlperf.recorder.api.start import at_begin
from otel_mlperf.recorder.core.faults import internal_error, log

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.recorder.lifecycle.recorder import Recorder
    from otel_mlperf.recorder.lifecycle.run import Run
    from otel_mlperf.recorder.sections.section_context import SectionContext

_MOST: Final = 8
"""Maximum number in one process: a program may run out of memory repeatedly, and continue."""
_SEEN: Final = "_otel_mlperf_seen"


class OutOfMemory:
    """Writer of the allocator's state when one of a run's sections runs out of GPU memory.

    Args:
        recorder: recorder of the run.
        find_torch: finds torch, if it is there.
    """

    def __init__(
        self, recorder: Recorder, find_torch: Callable[[], Any] = lambda: sys.modules.get("torch")
    ) -> None:
        self._recorder, self._find_torch = recorder, find_torch
        self._written = 0

    def failed(self, section: SectionContext, error: BaseException) -> None:
        """Handle any exception that leaves a section; never raises."""
        # By name first: every exception that leaves a section comes here.
        if type(error).__name__ != "OutOfMemoryError":
            return
        try:
            torch = self._find_torch()
            is_ours = torch is not None and isinstance(error, torch.cuda.OutOfMemoryError)
            if not is_ours or getattr(error, _SEEN, False) or self._written >= _MOST:
                return
            # Before anything is written: the same exception leaves the sections around this one.
            setattr(error, _SEEN, True)
            self._written += 1
            path = write_allocator(self._recorder, torch, str(error))
            if path is not None:
                section.set(**{names.CUDA_MEMORY_SNAPSHOT: f"{FOLDER}/{path.name}"})
                log.warning("out of GPU memory: the allocator's state is in %s", path)
        except Exception as problem:  # noqa: BLE001 - the program's exception goes on
            internal_error(problem)


def _begin(run: Run) -> None:
    if run._recorder is not None:
        run._recorder.sections.at_failure.append(OutOfMemory(run._recorder).failed)


at_begin.append(_begin)
