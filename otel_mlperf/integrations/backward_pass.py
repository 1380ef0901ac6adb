"""Start of watching backward passes: the import of torch, in runs of any kind."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from otel_mlperf.integrations.after_import import after_import
from otel_mlperf.recorder.api.start import at_begin

if TYPE_CHECKING:
    from otel_mlperf.recorder.lifecycle.run import Run

_is_awaited = False


def _begin(run: Run) -> None:
    global _is_awaited
    if run._recorder is not None and not _is_awaited:
        _is_awaited = True
        after_import("torch", _watch)


def _watch() -> None:
    if not hasattr(sys.modules["torch"], "autograd"):
        return  # another module of that name
    # Imported here: it loads the syntax tools of Python, which only programs with torch need.
    from otel_mlperf.pytorch.loop.backward_gate import BACKWARD_GATE

    BACKWARD_GATE.weave()


at_begin.append(_begin)
