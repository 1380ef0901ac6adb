"""Recording methods of the series of counters, gauges and histograms."""

from __future__ import annotations

from math import inf, log2
from typing import TYPE_CHECKING, Any

from otel_mlperf.recorder.core.faults import internal_error
from otel_mlperf.recorder.instruments.cells import FACTOR, HistogramCells, NoRoomError
from otel_mlperf.recorder.instruments.instrument_series import (
    HUGE,
    MOST,
    Bound,
    InstrumentSeries,
    try_slowly,
)
from otel_mlperf.recorder.sections.section_context import CURRENT

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.recorder.instruments.instrument_series import SeriesInUse


class CounterSeries(InstrumentSeries):
    """One series of a counter."""

    __slots__ = ()
    method = "add"

    def add(self, value: float = 1, /) -> None:
        """Add ``value``, which must not be negative."""
        self.record_slowly(value)

    def bind(self, run: SeriesInUse, word: int) -> Bound:
        """Return the method that records into the cell at ``word``."""
        floats, at, slowly = run.recording.journal.floats, word + 1, self.record_slowly
        total, low, limit = 0.0, 0, MOST

        def add(_: InstrumentSeries, value: Any = 1, /) -> None:
            nonlocal total
            try:
                kind = value.__class__
                if (kind is int and value >= low) or (
                    kind is float and value >= 0.0 and value <= limit
                ):
                    # No call between the two: the GIL is not released, so threads need no lock. The
                    # sum is stored whole, so a kill leaves the previous sum, never half of one.
                    total += value
                    floats[at] = total
                else:
                    slowly(value)
            except (OverflowError, ValueError) as error:  # too large, or the memory was released
                try_slowly(slowly, value, error)
            except Exception as error:  # noqa: BLE001 - recording never raises
                internal_error(error)

        def end() -> None:
            nonlocal low, limit
            low, limit = HUGE, -MOST

        return Bound(add, end)


class UpDownSeries(InstrumentSeries):
    """One series of a counter that can also decrease."""

    __slots__ = ()
    method = "add"
    low = -MOST

    def add(self, value: float, /) -> None:
        """Add ``value``, of either sign."""
        self.record_slowly(value)

    def bind(self, run: SeriesInUse, word: int) -> Bound:
        """Return the method that records into the cell at ``word``."""
        floats, at, slowly = run.recording.journal.floats, word + 1, self.record_slowly
        total, least, low, limit = 0.0, -MOST, -HUGE, MOST

        def add(_: InstrumentSeries, value: Any, /) -> None:
            nonlocal total
            try:
                kind = value.__class__
                if (kind is int and value >= low) or (
                    kind is float and value >= least and value <= limit
                ):
                    total += value
                    floats[at] = total
                else:
                    slowly(value)
            except (OverflowError, ValueError) as error:  # too large, or the memory was released
                try_slowly(slowly, value, error)
            except Exception as error:  # noqa: BLE001 - recording never raises
                internal_error(error)

        def end() -> None:
            nonlocal low, limit
            low, limit = HUGE, -inf

        return Bound(add, end)


class GaugeSeries(InstrumentSeries):
    """One series of a gauge."""

    __slots__ = ()
    method = "set"
    low = -MOST

    def set(self, value: float, /) -> None:
        """Set the current value."""
        self.record_slowly(value)

    def bind(self, run: SeriesInUse, word: int) -> Bound:
        """Return the method that records into the cell at ``word``."""
        floats, at, slowly = run.recording.journal.floats, word + 1, self.record_slowly
        least, low, limit = -MOST, -HUGE, MOST

        def set_value(_: InstrumentSeries, value: Any, /) -> None:
            try:
                kind = value.__class__
                if (kind is float and value >= least and value <= limit) or (
                    kind is int and value >= low
                ):
                    floats[at] = value
                else:
                    slowly(value)
            except (OverflowError, ValueError) as error:  # too large, or the memory was released
                try_slowly(slowly, value, error)
            except Exception as error:  # noqa: BLE001 - recording never raises
                internal_error(error)

        def end() -> None:
            nonlocal low, limit
            low, limit = HUGE, -inf

        return Bound(set_value, end)


class HistogramSeries(InstrumentSeries):
    """One series of a histogram."""

    __slots__ = ()
    method = "record"
    remedy = "its buckets cover values of at least zero"

    def record(self, value: float, /) -> None:
        """Count ``value``, which must not be negative."""
        self.record_slowly(value)

    def bind(self, run: SeriesInUse, word: int) -> Bound:
        """Return the method that records into the cell at ``word``, and further cells."""
        return self.bind_with(run, word, _no_labels)

    def bind_with(  # noqa: C901 - closures of one scope
        self, run: SeriesInUse, word: int, find: Callable[[dict[str, Any], Any], HistogramSeries]
    ) -> Bound:
        """Return that method, with a function that finds the series of passed labels."""
        floats, at, slowly = run.recording.journal.floats, word + 1, self.record_slowly
        words, get_current = run.recording.journal.words, CURRENT.get
        cells = HistogramCells(run.recording, run.parents, run.cells, word, self.content)
        zeros, least_at, most_at, least, most = at + 1, at + 2, at + 3, inf, -inf
        total, limit = 0.0, MOST
        seen: Any = None

        def record(  # noqa: C901 - no calls
            _: InstrumentSeries, value: Any, more: Any = None, /, **labels: Any
        ) -> None:
            nonlocal total, least, most, seen
            if labels or more is not None:
                find(labels, more).record(value)
                return
            try:
                kind = value.__class__
                if kind is not float and kind is not int:
                    slowly(value)
                    return
                if value > 0.0 and value <= limit:
                    words[cells[log2(value) * FACTOR // 1]] += 1
                elif value == 0.0 and limit > 0.0:
                    words[zeros] += 1
                else:
                    slowly(value)
                    return
                total += value
                floats[at] = total
                # Also stored in the closure: comparing with the cell would cost a load each.
                if value < least:
                    floats[least_at] = least = value
                if value > most:
                    floats[most_at] = most = value
                # Once for each section: an exemplar is for finding the span, not for each value.
                section = get_current()
                if section is not seen:
                    seen = section
                    cells.note(section, value)
            except NoRoomError:
                return
            except Exception as error:  # noqa: BLE001 - recording never raises
                internal_error(error)

        def end() -> None:
            nonlocal limit
            limit = -inf

        return Bound(record, end)


for _class in (CounterSeries, UpDownSeries, GaugeSeries, HistogramSeries):
    _class.usual = _class


def _no_labels(labels: dict[str, Any], more: Any) -> HistogramSeries:
    raise TypeError(f"a series has fixed labels: {', '.join(labels) or more!r} is ignored")
