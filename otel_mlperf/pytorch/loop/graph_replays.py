"""When does a loop train by replaying a CUDA graph?

In a graph that was captured around a whole step nothing of torch is called any more that could be
seen: neither module nor backward nor optimizer. Each replay of such a graph is an update of its
own. What was seen while it was captured has not happened: that is no step.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names
from otel_mlperf.pytorch.loop.moments import UNSEEN, LoopMoment, safely

if TYPE_CHECKING:
    from otel_mlperf.pytorch.loop.loop_finder import Loop


class CapturedUpdates:
    """The graphs that hold updates of parameters."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._graphs: weakref.WeakSet[Any] = weakref.WeakSet()
        self._before = 0

    def __contains__(self, graph: object) -> bool:
        return graph in self._graphs

    def begin(self, _graph: Any) -> None:
        """A capture does, in the thread of the loop."""
        self._before = self._loop.updates

    def end(self, graph: Any) -> None:
        """It does."""
        if self._loop.updates > self._before:
            self._graphs.add(graph)
            self._loop.captured()


class Capture(LoopMoment):
    """One end of captures: no section, and no moment of the loop."""

    def __init__(self, loop: Loop, captured: CapturedUpdates, *, is_begin: bool) -> None:
        super().__init__("capture_begin" if is_begin else "capture_end", loop)
        self._tell: Final = captured.begin if is_begin else captured.end

    def of(self, subject: Any = None) -> Any:
        """Tells of this graph."""
        if super().of() is self:
            safely(self._tell, subject)
        return UNSEEN


class Replay(LoopMoment):
    """The replay of a graph that holds an update; one inside another moment is a part of that."""

    def __init__(self, loop: Loop, captured: CapturedUpdates) -> None:
        super().__init__(names.SPAN_GRAPH_REPLAY, loop)
        self._captured = captured

    def of(self, subject: Any = None) -> Any:
        """The gate for a replay of this graph."""
        if self._loop.depth or subject not in self._captured:
            return UNSEEN
        return super().of(subject)

    def _begins(self, subject: Any) -> None:
        self._loop.update_begins(subject)
        super()._begins(subject)
        self._loop.updated(subject)
