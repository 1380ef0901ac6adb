"""GPU stamps: device times of sections, collected without ever waiting for the device.

A stamp (a CUDA event) is recorded at the start and at the end of a section, in the current stream.
Each new stamp also queries, without waiting, whether the device has passed the oldest pending
stamps. Once all stamps of a step have been passed, their times are written to the journal. Sections
outside steps are reported in small batches.

Only the thread that runs the steps records stamps. While any thread captures a CUDA graph, no event
is recorded or queried. Sections without a device time are counted by reason.
"""

from __future__ import annotations

import time
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names
from otel_mlperf.foreign_errors import is_foreign
from otel_mlperf.journal.contents import DeviceTimes, SectionTimes
from otel_mlperf.journal.layout import Flag
from otel_mlperf.pytorch.gpu_time.captures import Captures
from otel_mlperf.pytorch.gpu_time.device_clock import (
    MAX_EVENTS,
    DeviceClock,
    EventPool,
    Stamp,
    bounds_of,
)
from otel_mlperf.recorder.core.faults import warn_once
from otel_mlperf.recorder.core.thread_ident import get_ident
from otel_mlperf.recorder.sections.section_context import root_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.recorder.lifecycle.recorder import Recorder
    from otel_mlperf.recorder.sections.parents import OpenStep
    from otel_mlperf.recorder.sections.section_context import SectionContext

_LATE_NS: Final = 1_000_000
"""If a step ended longer ago than this, its last section's end stamp is used for the step."""
_MAX_OUTSIDE: Final = 16
"""Maximum number of sections outside steps that are reported together."""
_MAX_QUERIED: Final = 32
"""Maximum number of stamps queried per call, which limits the delay of a section."""
_MAX_REPORTED: Final = 2
"""Maximum number of batches reported per call."""
_FLAGS: Final = int(Flag.ON_DEVICE)
_Pair = tuple[int, int, Stamp, Stamp]
"""Span, section entry, start stamp, end stamp."""


class _Batch:
    """Sections under one root (a step or an outermost section) on one device, sent together."""

    __slots__ = ("is_mixed", "is_step", "pairs", "root")

    def __init__(self, root: int) -> None:
        self.root = root
        self.pairs: list[_Pair] = []
        self.is_step = self.is_mixed = False

    @property
    def is_passed(self) -> bool:
        return all(end.seen_ns for _, _, _, end in self.pairs)


class GpuStamps:
    """GPU stamps of one recording.

    Args:
        recorder: recorder of the run.
        cuda: ``torch.cuda``, which the program has initialised.
        clock: returns monotonic nanoseconds.
        most: maximum number of events per device.
        captures: threads that are capturing a CUDA graph.
    """

    def __init__(
        self,
        recorder: Recorder,
        cuda: Any,
        clock: Callable[[], int] = time.monotonic_ns,
        most: int = MAX_EVENTS,
        captures: Captures | None = None,
    ) -> None:
        self._recorder, self._cuda, self._clock = recorder, cuda, clock
        self._captures = captures or Captures()
        self._thread = get_ident()
        self._is_off = False
        recorder.at_retire.append(self._switch_off)
        self._pool = EventPool(lambda: cuda.Event(enable_timing=True), most)
        self._ahead: deque[Stamp] = deque()
        """Stamps not yet found passed, oldest first."""
        self._open: dict[tuple[int, int], _Batch] = {}
        """Open batches by root and device."""
        self._whole: deque[_Batch] = deque()
        """Batches that are closed for additions."""
        self._clocks: dict[int, DeviceClock] = {}
        # Not drawn from the section ids: loop moments infer from gaps in those that a section was
        # recorded.
        first = recorder.next_id() ^ 1 << 61
        self._next_key = count(first).__next__

    # -- called by sections ----------------------------------------------------------------------

    def begin(self) -> Stamp | None:
        """Record a section's start stamp; return None if this thread cannot record one now."""
        if self._is_off or get_ident() != self._thread:
            return None
        try:
            return self._put()
        except Exception as error:  # noqa: BLE001 - decided there
            self._give_up(error)
            return None

    def end(self, stamp: Stamp, section: SectionContext) -> int:
        """Record the end stamp of a section whose start stamp is ``stamp``.

        Return the flags for the section's row; 0 if the section has no device time.
        """
        try:
            ended = self._end(stamp)
            if ended is None:
                return 0
            pair = section.sid, section.entry, stamp, ended
            self._add(root_of(section), stamp.place[0], pair)
        except Exception as error:  # noqa: BLE001 - decided there
            self._give_up(error)
            return 0
        return _FLAGS

    def end_step(self, stamp: Stamp, step: OpenStep, end_ns: int) -> int:
        """Record the end stamp of a step that ended at ``end_ns``; return flags as ``end`` does."""
        section = step.section
        try:
            ended = self._end_before(section.sid, stamp, end_ns) or self._end(stamp)
            if ended is not None:
                batch = self._batch(section.sid, stamp.place[0])
                batch.pairs.insert(0, (section.sid, section.entry, stamp, ended))
                batch.is_step, batch.is_mixed = True, step.excluded > 0
            self._close(section.sid)
        except Exception as error:  # noqa: BLE001 - decided there
            self._give_up(error)
            return 0
        return _FLAGS if ended is not None else 0

    def drop(self, stamp: Stamp) -> None:
        """Discard the start stamp of a section that gets no end stamp."""
        stamp.is_dropped = True
        if stamp.seen_ns:
            self._pool.give(stamp.place[0], stamp.event)

    def finish(self) -> None:
        """At the run's end, report batches that the device has passed; count others as missed."""
        if self._is_off or get_ident() != self._thread:
            return
        try:
            self._close(0)
            with self._captures.lock:
                while not self._is_capturing() and self._look():
                    pass
            self._count("late", sum(len(batch.pairs) for batch in self._whole))
        except Exception as error:  # noqa: BLE001 - decided there
            self._give_up(error)
        self._is_off = True

    def _switch_off(self) -> None:
        # Events are not touched: in a forked child they belong to the parent.
        self._is_off = True

    # -- stamps -----------------------------------------------------------------------------------

    def _is_capturing(self) -> bool:
        return bool(self._captures.threads) or self._cuda.is_current_stream_capturing()

    def _put(self) -> Stamp | None:
        """Record a stamp in the current stream; None if no event is free or a graph is captured."""
        with self._captures.lock:
            # Must be checked first: querying an event would invalidate the capture, and a recorded
            # event would become part of the graph.
            if self._is_capturing():
                self._count("capture")
                return None
            return self._put_now()

    def _put_now(self) -> Stamp | None:
        stream = self._cuda.current_stream()
        device = stream.device.index
        event = self._pool.take(device)
        if event is None:
            self._count("pool")
            self._look()
            return None
        stamp = Stamp(event, (device, stream.cuda_stream), self._clock())
        event.record(stream)
        self._ahead.append(stamp)
        # Queried after recording, not before: the device has more time to pass the previous stamps.
        self._look()
        return stamp

    def _end(self, start: Stamp) -> Stamp | None:
        """Return an end stamp for ``start``; if impossible, drop ``start`` and return None."""
        if self._is_off:
            return None
        ended = self._put() if get_ident() == self._thread else None
        if ended is not None and ended.place != start.place:
            self._count("stream")
            self.drop(ended)
            ended = None
        if ended is None:
            self.drop(start)
        return ended

    def _end_before(self, root: int, start: Stamp, end_ns: int) -> Stamp | None:
        """Return the last section's end stamp if a step ended over ``_LATE_NS`` ago, else None."""
        if self._clock() - end_ns < _LATE_NS:
            return None
        batch = self._open.get((root, start.place[0]))
        ends = [end for _, _, _, end in batch.pairs if end.place == start.place] if batch else []
        return next((end for end in reversed(ends) if end.host_ns < end_ns + _LATE_NS), None)

    # -- batches ---------------------------------------------------------------------------------

    def _batch(self, root: int, device: int) -> _Batch:
        batch = self._open.get((root, device))
        if batch is None:
            batch = self._open[root, device] = _Batch(root)
        return batch

    def _add(self, root: int, device: int, pair: _Pair) -> None:
        batch = self._batch(root, device)
        batch.pairs.append(pair)
        if len(batch.pairs) >= _MAX_OUTSIDE and root not in self._recorder.parents.steps:
            self._whole.append(self._open.pop((root, device)))

    def _close(self, root: int) -> None:
        """Close the batches of step ``root``, and all batches that belong to no open step."""
        steps = self._recorder.parents.steps
        over = [key for key in self._open if key[0] == root or key[0] not in steps]
        batches = [self._open.pop(key) for key in over]
        # The batch of the step itself must be last: its arrival means that the step is complete.
        batches.sort(key=lambda batch: batch.is_step)
        self._whole.extend(batches)

    # -- passed stamps ----------------------------------------------------------------------------

    def _look(self) -> bool:
        """Query the oldest stamps and report complete batches; return whether anything was done."""
        ahead, seen = self._ahead, 0
        while ahead and seen < _MAX_QUERIED and ahead[0].event.query():
            stamp = ahead.popleft()
            stamp.seen_ns = self._clock()
            seen += 1
            if stamp.is_dropped:
                self._pool.give(stamp.place[0], stamp.event)
        whole, reported = self._whole, 0
        while whole and reported < _MAX_REPORTED and whole[0].is_passed:
            self._report(whole.popleft())
            reported += 1
        return bool(seen or reported)

    def _report(self, batch: _Batch) -> None:
        """Write a batch's times to the journal; release all events of the batch except the last."""
        stamps = [*{id(m): m for _, _, begin, end in batch.pairs for m in (begin, end)}.values()]
        device = stamps[0].place[0]
        clock = self._clocks.setdefault(device, DeviceClock())
        device_ns = clock.read(stamps)
        at = {id(stamp): ns for stamp, ns in zip(stamps, device_ns, strict=True)}
        host, first, place = stamps[0].host_ns, device_ns[0], stamps[0].place
        sections = [
            SectionTimes(
                span, entry, begin.place == place, begin.host_ns - host, end.host_ns - host,
                at[id(begin)] - first, at[id(end)] - first,
            )
            for span, entry, begin, end in batch.pairs
        ]  # fmt: skip
        about = batch.root, device, batch.is_step, batch.is_mixed, host, first
        self._write(DeviceTimes(*about, *bounds_of(stamps, device_ns), sections))
        last = max(stamps, key=lambda stamp: stamp.host_ns)
        before = clock.move_to(last, at[id(last)])
        for stamp in stamps if before is None else [*stamps, before]:
            if stamp is not last:
                self._pool.give(device, stamp.event)

    def _write(self, content: DeviceTimes) -> None:
        if not self._recorder.is_retired:
            self._recorder.journal.payload(self._next_key(), {"d": content})

    # -- failures ---------------------------------------------------------------------------------

    def _count(self, reason: str, by: int = 1) -> None:
        metric = names.GPU_TIME_MISSED
        if by:
            self._recorder.cells.add(metric.name, metric.unit, by, ((names.ERROR_TYPE, reason),))

    def _give_up(self, error: Exception) -> None:
        """Stop recording stamps, because the device failed or torch behaves unexpectedly.

        Raises:
            Exception: ``error`` itself, if the program raised it.
        """
        if is_foreign(error):
            raise error
        self._is_off = True
        self._ahead.clear()
        self._open.clear()
        self._whole.clear()
        self._count("error")
        warn_once("GPU time of sections is no longer measured: %s: %s",
                  type(error).__name__, error)  # fmt: skip
