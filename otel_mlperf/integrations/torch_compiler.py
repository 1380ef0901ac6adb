"""Start of watching ``torch.compile``: the import of TorchDynamo, in runs of any kind."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from otel_mlperf.integrations.after_import import after_import
from otel_mlperf.recorder.api.start import at_begin

if TYPE_CHECKING:
    from otel_mlperf.recorder.lifecycle.run import Run

_DYNAMO: Final = "torch._dynamo"
_is_awaited = False


def _begin(run: Run) -> None:
    global _is_awaited
    if run._recorder is not None and not _is_awaited:
        _is_awaited = True
        after_import(_DYNAMO, _watch)


def _watch() -> None:
    # Imported here: it loads the syntax tools of Python.
    from otel_mlperf.pytorch.loop.compilation import watch_compilation

    watch_compilation(sys.modules[_DYNAMO])


at_begin.append(_begin)
