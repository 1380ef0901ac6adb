"""Gate of ``torch.autograd.backward``, shared by inferred loops and programs that use the API.

In an inferred loop, a backward pass is a moment. In a program that reports its steps itself, a pass
is not a section: only the operations of a few passes are counted.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any, Final

from otel_mlperf.pytorch.loop.moments import UNSEEN, LoopMoment, safely
from otel_mlperf.pytorch.loop.weave import hide, see, weave
from otel_mlperf.recorder.api.span import active
from otel_mlperf.recorder.instruments.graph_size import CheckpointCalls, examine_pass

_NAME: Final = "_otel_mlperf_backward"
_CHECKPOINT: Final = "torch.utils.checkpoint"
_RECOMPUTED: Final = "_otel_mlperf_recomputed"


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


class CheckpointGate:
    """Gate of ``torch.utils.checkpoint.checkpoint``, which only counts the calls."""

    busy: Final = False

    def weave(self) -> None:
        """Start counting the calls, once the module has been imported; never raises."""
        module = importlib.import_module(_CHECKPOINT)
        see("checkpoints", lambda: weave(inspect.unwrap(module.checkpoint), self, _RECOMPUTED))

    def of(self, _: Any) -> Any:
        """Count a call; its body runs as if the function were not woven."""
        recorder = active()
        if recorder is not None:
            recorder.kept[CheckpointCalls] = recorder.kept.get(CheckpointCalls, 0) + 1
        return UNSEEN


CHECKPOINT_GATE: Final = CheckpointGate()
BACKWARD_GATE: Final = BackwardGate()
