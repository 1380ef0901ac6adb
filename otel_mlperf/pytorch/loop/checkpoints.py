"""When is a checkpoint written or read, and in which file?

Tensors that are pickled go through the same functions of torch, into a buffer: they are no
checkpoint. A framework's call that writes or reads several files is one checkpoint.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf.pytorch.loop.checkpoint_io import CheckpointIo, set_size
from otel_mlperf.pytorch.loop.moments import UNSEEN, OtherWork, clock, safely

if TYPE_CHECKING:
    from otel_mlperf.pytorch.loop.loop_finder import Loop

_PICKLES_TENSORS: Final = "torch.storage"


class Checkpoint(OtherWork):
    """A file of a checkpoint that is written or read."""

    def __init__(self, name: str, direction: str, loop: Loop) -> None:
        super().__init__(name, loop)
        self.whole = WholeCheckpoint(name, loop)
        """The call of a framework that it may be in."""
        self._direction = direction
        self._io: CheckpointIo | None = None

    def of(self, subject: Any = None) -> Any:
        """The gate for a call with this file."""
        if sys._getframe(2).f_globals.get("__name__") == _PICKLES_TENSORS:
            return UNSEEN  # a tensor is pickled, for another process or to be copied
        return super().of(subject)

    def _begins(self, subject: Any) -> None:
        super()._begins(subject)
        self._io = CheckpointIo(self._direction, subject)

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        written, self._io = self._io, None
        try:
            if written is not None and kind is None:
                self.whole.size += written.end(self._section)
        finally:
            super().__exit__(kind, error, traceback)


class WholeCheckpoint(OtherWork):
    """A framework's call that writes or reads all files of a checkpoint, which are its parts."""

    size = 0
    """Bytes of its files so far."""

    def _begins(self, subject: Any) -> None:
        super()._begins(subject)
        self.size = 0

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            if self.size and kind is None:
                safely(set_size, self._section, self.size, clock() - self._began_ns)
        finally:
            super().__exit__(kind, error, traceback)
