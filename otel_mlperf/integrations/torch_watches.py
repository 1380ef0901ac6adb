"""Observation of backward passes, recomputation and compilations in every run with torch.

The observing modules are imported only then: they load ``ast`` and ``inspect``, which only programs
with torch need.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from otel_mlperf.integrations.after_import import after_import
from otel_mlperf.recorder.api.start import at_begin

if TYPE_CHECKING:
    from otel_mlperf.recorder.lifecycle.run import Run

_CHECKPOINT: Final = "torch.utils.checkpoint"
_DYNAMO: Final = "torch._dynamo"
_is_awaited = False


def _begin(run: Run) -> None:
    global _is_awaited
    if run._recorder is not None and not _is_awaited:
        _is_awaited = True
        after_import("torch", _watch_backward)
        after_import(_CHECKPOINT, _watch_checkpoints)
        after_import(_DYNAMO, _watch_compiler)


def _watch_backward() -> None:
    if not hasattr(sys.modules["torch"], "autograd"):
        return  # another module named torch
    from otel_mlperf.pytorch.loop.backward_gate import BACKWARD_GATE

    BACKWARD_GATE.weave()


def _watch_checkpoints() -> None:
    from otel_mlperf.pytorch.loop.backward_gate import CHECKPOINT_GATE

    CHECKPOINT_GATE.weave()


def _watch_compiler() -> None:
    from otel_mlperf.pytorch.loop.compilation import watch_compilation

    watch_compilation(sys.modules[_DYNAMO])


at_begin.append(_begin)
