"""How does a series of the program's counters, gauges and histograms record at the least cost?

In each run a series that is used gets a method of its own, bound to its cell by closure: no lock,
no lookup. What lies between load and store there gives up the GIL nowhere and runs no signal
handler, so one cell serves all threads. When the run ends or the process is forked, no value fits
the method's limits any more: whoever still holds it is sent the long way, which finds what records
then. A value that would have to be fetched from a GPU is never looked at.
"""

from __future__ import annotations

import sys
from math import inf, isfinite, log2
from typing import TYPE_CHECKING, Any, ClassVar

from otel_mlperf.recorder.api import span as spans
from otel_mlperf.recorder.core.faults import internal_error, say_once
from otel_mlperf.recorder.core.number_values import plain_number, try_slowly
from otel_mlperf.recorder.instruments.histogram_cells import FACTOR, NoRoomError, Shelf
from otel_mlperf.recorder.sections.section_context import CURRENT

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.recorder.core.recorder import Recorder
    from otel_mlperf.recorder.instruments.cells import Content

MOST = sys.float_info.max
"""The limit of floats."""


HUGE = 1 << 1024
"""No float holds it: below it an integer that is too large is an OverflowError."""


class Bound:
    """What records for one series in one run, and ends that."""

    __slots__ = ("end", "record")

    def __init__(self, record: Callable[..., None], end: Callable[[], None]) -> None:
        self.record, self.end = record, end


class Series:
    """One label set of one instrument."""

    __slots__ = ("content", "name")
    method: ClassVar[str]
    """The method that records."""
    low: ClassVar[float] = 0.0
    """The least value that may be recorded."""
    remedy: ClassVar[str] = "use a gauge"
    """For what is below it."""
    usual: ClassVar[type[Series]]
    """The class while nothing is recorded."""

    def __init__(self, name: str, content: Content) -> None:
        self.name, self.content = name, content

    def bind(self, recorder: Recorder, word: int) -> Bound:
        """What records into the cell at ``word``."""
        raise NotImplementedError

    def install(self, bound: Bound) -> None:
        """From now on it records by ``bound``, the method of a class of its own.

        The interpreter finds a method of a class without dictionary faster than anything else.
        """
        usual = self.usual
        members = {"__slots__": (), self.method: bound.record}
        self.__class__ = type(usual.__name__, (usual,), members)

    def uninstall(self) -> None:
        """From now on it looks for what records."""
        self.__class__ = self.usual

    def record_slowly(self, value: Any) -> None:
        """Records any value, or says why not, and takes the short way from then on."""
        try:
            number = plain_number(self.name, value)
            if number < 0 and self.low == 0:
                say_once(f"{self.name}: a negative value is left out; {self.remedy}")
            if isinstance(value, float) and not isfinite(value):
                say_once(f"{self.name}: {value} is left out; log() records such values")
            recorder = spans.active()
            if recorder is None or not self.low <= number <= MOST:
                return
            bound = recorder.cells.bound(self)
            if bound is not None:
                if type(self).__dict__.get(self.method) is not bound.record:
                    self.install(bound)
                bound.record(self, number)
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)


class CounterSeries(Series):
    """One series of a counter."""

    __slots__ = ()
    method = "add"

    def add(self, value: float = 1, /) -> None:
        """Adds ``value``, which must not be negative."""
        self.record_slowly(value)

    def bind(self, recorder: Recorder, word: int) -> Bound:
        """What records into the cell at ``word``."""
        floats, at, slowly = recorder.journal.floats, word + 1, self.record_slowly
        total, low, limit = 0.0, 0, MOST

        def add(_: Series, value: Any = 1, /) -> None:
            nonlocal total
            try:
                kind = value.__class__
                if (kind is int and value >= low) or (
                    kind is float and value >= 0.0 and value <= limit
                ):
                    total += value
                    floats[at] = total
                else:
                    slowly(value)
            except (OverflowError, ValueError) as error:  # too large, or the memory is given up
                try_slowly(slowly, value, error)
            except Exception as error:  # noqa: BLE001 - recording never raises
                internal_error(error)

        def end() -> None:
            nonlocal low, limit
            low, limit = HUGE, -MOST

        return Bound(add, end)


class GaugeSeries(Series):
    """One series of a gauge."""

    __slots__ = ()
    method = "set"
    low = -MOST

    def set(self, value: float, /) -> None:
        """The value from now on."""
        self.record_slowly(value)

    def bind(self, recorder: Recorder, word: int) -> Bound:
        """What records into the cell at ``word``."""
        floats, at, slowly = recorder.journal.floats, word + 1, self.record_slowly
        least, low, limit = -MOST, -HUGE, MOST

        def set_value(_: Series, value: Any, /) -> None:
            try:
                kind = value.__class__
                if (kind is float and value >= least and value <= limit) or (
                    kind is int and value >= low
                ):
                    floats[at] = value
                else:
                    slowly(value)
            except (OverflowError, ValueError) as error:  # too large, or the memory is given up
                try_slowly(slowly, value, error)
            except Exception as error:  # noqa: BLE001 - recording never raises
                internal_error(error)

        def end() -> None:
            nonlocal low, limit
            low, limit = HUGE, -inf

        return Bound(set_value, end)


class HistogramSeries(Series):
    """One series of a histogram."""

    __slots__ = ()
    method = "record"
    remedy = "its buckets are for values from zero on"

    def record(self, value: float, /) -> None:
        """Counts ``value``, which must not be negative."""
        self.record_slowly(value)

    def bind(self, recorder: Recorder, word: int) -> Bound:
        """What records into the cell at ``word``, and others that it takes."""
        return self.bind_with(recorder, word, _no_labels)

    def bind_with(  # noqa: C901 - closures of one scope
        self, recorder: Recorder, word: int, find: Callable[[dict[str, Any]], HistogramSeries]
    ) -> Bound:
        """The same, with what finds the series where labels are given."""
        floats, at, slowly = recorder.journal.floats, word + 1, self.record_slowly
        words, get_current = recorder.journal.words, CURRENT.get
        shelf = Shelf(recorder, word, self.content)
        zeros, least_at, most_at, least, most = at + 1, at + 2, at + 3, inf, -inf
        total, limit = 0.0, MOST
        seen: Any = None

        def record(_: Series, value: Any, /, **labels: Any) -> None:  # noqa: C901 - no calls
            nonlocal total, least, most, seen
            if labels:
                find(labels).record(value)
                return
            try:
                kind = value.__class__
                if kind is not float and kind is not int:
                    slowly(value)
                    return
                if value > 0.0 and value <= limit:
                    words[shelf[log2(value) * FACTOR // 1]] += 1
                elif value == 0.0 and limit > 0.0:
                    words[zeros] += 1
                else:
                    slowly(value)
                    return
                total += value
                floats[at] = total
                if value < least:
                    floats[least_at] = least = value
                if value > most:
                    floats[most_at] = most = value
                section = get_current()
                if section is not seen:
                    seen = section
                    shelf.note(section, value)
            except NoRoomError:
                return
            except Exception as error:  # noqa: BLE001 - recording never raises
                internal_error(error)

        def end() -> None:
            nonlocal limit
            limit = -inf

        return Bound(record, end)


for _class in (CounterSeries, GaugeSeries, HistogramSeries):
    _class.usual = _class


def _no_labels(labels: dict[str, Any]) -> HistogramSeries:
    raise TypeError(f"a series has its labels: {', '.join(labels)} came too late")
