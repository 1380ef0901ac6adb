"""When does a framework move a batch to the device?

Frameworks do it by one function for all of a batch: that call is seen, and only where something
moves. Nobody waits for the device: of a copy that goes on by itself the section has the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names
from otel_mlperf.foreign_errors import is_foreign
from otel_mlperf.pytorch.loop.moments import UNSEEN, LoopMoment

if TYPE_CHECKING:
    from otel_mlperf.pytorch.loop.loop_finder import Loop

_DEPTH: Final = 4
"""Containers around a tensor that are looked into."""
_HOST: Final = "cpu"


class _AtHost:
    type: Final = _HOST


_AT_HOST: Final = _AtHost()


class Transfer(LoopMoment):
    """A batch on its way to the device; its subject is the batch, and where it goes."""

    def __init__(self, loop: Loop) -> None:
        super().__init__(names.TRANSFER, loop)

    def of(self, subject: Any = None) -> Any:
        """The gate for this batch and device; one inside another moment is a part of that."""
        if self._loop.depth or subject is None or not _moves(*subject):
            return UNSEEN
        return super().of(subject)

    def _settle(self, subject: Any) -> None:
        # It stays there: a generator that has its batch moved may still ask for the next one.
        if LoopMoment.paused is not None:
            LoopMoment.paused.settle()


def _moves(batch: Any, device: Any) -> bool:
    """Whether the batch is still on the host, as far as its first tensor says, and leaves it."""
    try:
        kind = getattr(device, "type", device)
        if kind == _HOST:
            return False
        first = _first(batch, _DEPTH)
        # An object of the program's own without a device knows itself what it holds.
        return first is not None and getattr(first, "device", _AT_HOST).type == _HOST
    except Exception as error:
        if is_foreign(error):
            raise
        return False


def _first(batch: Any, depth: int) -> Any:
    """The first thing in it that can be moved; None: nothing can."""
    parts = batch.values() if isinstance(batch, Mapping) else batch
    if parts is batch and not isinstance(batch, list | tuple):
        return batch if hasattr(batch, "to") else None
    if not depth:
        return None
    return next((one for part in parts if (one := _first(part, depth - 1)) is not None), None)
