"""Gate of ``torch.autograd.backward``, shared by inferred loops and programs that use the API.

In an inferred loop, a backward pass is a moment. In a program that reports its steps itself, a pass
is not a section: only the operations of a few passes are counted.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

from otel_mlperf.pytorch.loop.moments import UNSEEN, LoopMoment, safely
from otel_mlperf.pytorch.loop.weave import hide, see, weave
from otel_mlperf.recorder.api.span import active
from otel_mlperf.recorder.instruments.graph_size import examine_pass

_NAME: Final = "_otel_mlperf_backward"


class BackwardGate:
    """Gate of ``torch.autograd.backward``."""

    def __init__(self) -> None:
        self.busy = False
        """Whether a pass is open; nested passes (activation checkpointing) are part of it."""
        self._moment: LoopMoment | None = None
        self._is_woven = False

    def weave(self) -> None:
        """Start observing backward passes, once torch has been imported; never raises."""
        # Must be done only once: a function that is woven twice keeps only the later gate.
        if not self._is_woven:
            self._is_woven = True
            torch = importlib.import_module("torch")
            see("backward", lambda: weave(torch.autograd.backward, self, _NAME, subject="tensors"))

    def lead_to(self, moment: LoopMoment) -> None:
        """Route backward passes to ``moment`` while moments are observed."""
        self.weave()
        hide(moment, importlib.import_module("torch"))
        self._moment, self.busy = moment, False

    def of(self, tensors: Any) -> Any:
        """Return the context for a backward pass that starts at ``tensors``."""
        if self._moment is not None and not LoopMoment.is_off:
            return UNSEEN if self._moment.busy else self._moment.of(tensors)
        recorder = active()
        if recorder is None:
            return UNSEEN
        safely(examine_pass, recorder.kept, recorder.cells, tensors)
        return self

    def __enter__(self) -> None:
        self.busy = True

    def __exit__(self, *_: object) -> None:
        self.busy = False


BACKWARD_GATE: Final = BackwardGate()
