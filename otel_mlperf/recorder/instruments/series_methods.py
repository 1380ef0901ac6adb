"""Series of counters, gauges and histograms, with fast recording methods."""

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
    """Series of a counter."""

    __slots__ = ()
    method = "add"

    def add(self, value: float = 1, /) -> None:
        """Add ``value``, which must not be negative."""
        self.record_slowly(value)

    def bind(self, run: SeriesInUse, word: int) -> Bound:
        """Return the recording method of this series, for the cell that starts at word ``word``."""
        floats, at, slowly = run.recording.journal.floats, word + 1, self.record_slowly
        total, low, limit = 0.0, 0, MOST

        def add(_: InstrumentSeries, value: Any = 1, /) -> None:
            nonlocal total
            try:
                kind = value.__class__
                if (kind is int and value >= low) or (
                    kind is float and value >= 0.0 and value <= limit
                ):
                    # No call in between, so that the GIL is not released and threads need no lock.
                    # The sum is one store: a killed process leaves the old or the new sum.
                    total += value
                    floats[at] = total
                else:
                    slowly(value)
            except (OverflowError, ValueError) as error:  # too large, or the journal was unmapped
                try_slowly(slowly, value, error)
            except Exception as error:  # noqa: BLE001 - recording never raises
                internal_error(error)

        def end() -> None:
            nonlocal low, limit
            low, limit = HUGE, -MOST

        return Bound(add, end)


class UpDownSeries(InstrumentSeries):
    """Series of an up-down counter."""

    __slots__ = ()
    method = "add"
    low = -MOST

    def add(self, value: float, /) -> None:
        """Add ``value``, of either sign."""
        self.record_slowly(value)

    def bind(self, run: SeriesInUse, word: int) -> Bound:
        """Return the recording method of this series, for the cell that starts at word ``word``."""
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
            except (OverflowError, ValueError) as error:  # too large, or the journal was unmapped
                try_slowly(slowly, value, error)
            except Exception as error:  # noqa: BLE001 - recording never raises
                internal_error(error)

        def end() -> None:
            nonlocal low, limit
            low, limit = HUGE, -inf

        return Bound(add, end)


class GaugeSeries(InstrumentSeries):
    """Series of a gauge."""

    __slots__ = ()
    method = "set"
    low = -MOST

    def set(self, value: float, /) -> None:
        """Set the current value."""
        self.record_slowly(value)

    def bind(self, run: SeriesInUse, word: int) -> Bound:
        """Return the recording method of this series, for the cell that starts at word ``word``."""
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
            except (OverflowError, ValueError) as error:  # too large, or the journal was unmapped
                try_slowly(slowly, value, error)
            except Exception as error:  # noqa: BLE001 - recording never raises
                internal_error(error)

        def end() -> None:
            nonlocal low, limit
            low, limit = HUGE, -inf

        return Bound(set_value, end)


class HistogramSeries(InstrumentSeries):
    """Series of a histogram."""

    __slots__ = ()
    method = "record"
    remedy = "its buckets cover values of at least zero"

    def record(self, value: float, /) -> None:
        """Record one observation of ``value``, which must not be negative."""
        self.record_slowly(value)

    def bind(self, run: SeriesInUse, word: int) -> Bound:
        """Return the recording method of this series, for the head cell at word ``word``."""
        return self.bind_with(run, word, _no_labels)

    def bind_with(  # noqa: C901 - closures of one scope
        self, run: SeriesInUse, word: int, find: Callable[[dict[str, Any], Any], HistogramSeries]
    ) -> Bound:
        """Return the recording method of this series, for the head cell at word ``word``.

        Args:
            run: the series and cells of the run; bucket cells are allocated on demand.
            word: index of the first word of the head cell.
            find: returns the series of labels that are passed with a value.
        """
        floats, at, slowly = run.recording.journal.floats, word + 1, self.record_slowly
        words, get_current = run.recording.journal.words, CURRENT.get
        cells = HistogramCells(run.recording, run.parents, run.cells, word, self.content)
        zeros, least_at, most_at, least, most = at + 1, at + 2, at + 3, inf, -inf
        total, limit = 0.0, MOST
        last_section: Any = None

        def record(  # noqa: C901 - no calls
            _: InstrumentSeries, value: Any, more: Any = None, /, **labels: Any
        ) -> None:
            nonlocal total, least, most, last_section
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
                # Minimum and maximum are also closure variables, which saves reading the cell.
                if value < least:
                    floats[least_at] = least = value
                if value > most:
                    floats[most_at] = most = value
                # At most one exemplar for each section, because it identifies a span, not a value.
                section = get_current()
                if section is not last_section:
                    last_section = section
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
