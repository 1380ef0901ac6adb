"""When is a checkpoint written or read, and what of?

A call is woven with the parameter that says its file. Tensors that are pickled go through the same
functions of torch, into a buffer: they are no checkpoint.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names
from otel_mlperf.pytorch.loop.checkpoint_io import CheckpointIo
from otel_mlperf.pytorch.loop.moments import UNSEEN, LoopMoment

if TYPE_CHECKING:
    from types import FunctionType

    from otel_mlperf.pytorch.loop.loop_finder import Loop

NO_FILE: Final = "None"
"""Of what is done before its file is, or reads only a part of it: nobody knows its bytes."""
_PICKLES_TENSORS: Final = "torch.storage"


class Checkpoint(LoopMoment):
    """A checkpoint that is written or read."""

    def __init__(self, name: str, direction: str, loop: Loop) -> None:
        super().__init__(name, loop)
        self._direction = direction
        self._io: CheckpointIo | None = None

    def of(self, subject: Any = None) -> Any:
        """The gate for a call with this file."""
        if sys._getframe(2).f_globals.get("__name__") == _PICKLES_TENSORS:
            return UNSEEN  # a tensor is pickled, for another process or to be copied
        return super().of(subject)

    def _begins(self, subject: Any) -> Any:
        self._loop.saves()
        section = super()._begins(subject)
        self._io = CheckpointIo(self._direction, subject)
        return section

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        written, self._io = self._io, None
        try:
            if written is not None and kind is None:
                written.end(self._section)
        finally:
            super().__exit__(kind, error, traceback)


def made_by(loop: Loop) -> tuple[Checkpoint, Checkpoint]:
    """What writing and reading functions are woven into."""
    return (
        Checkpoint(names.SPAN_CHECKPOINT, names.CHECKPOINT_WRITE, loop),
        Checkpoint(names.SPAN_CHECKPOINT_LOAD, names.CHECKPOINT_READ, loop),
    )


def file_of(function: FunctionType, expression: str) -> str:
    """The expression, if the function has all parameters that it is of; else ``None``.

    Versions of a library call them differently, and the expression may not fail.
    """
    code = function.__code__
    known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    asked = compile(expression, "<file>", "eval").co_names
    return expression if set(asked) <= set(known) else NO_FILE
