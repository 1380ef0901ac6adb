"""The public calls ``counter``, ``gauge`` and ``histogram``, for the program's own metrics.

A name always returns the same object in a process, also before and between runs. An instrument is
itself its series without labels. Labels are passed with each value, or once to ``labels()``, which
returns the series and so saves a lookup for each value.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from otel_mlperf import names
from otel_mlperf.recorder.core.attribute_values import UNNAMED, safe_name_text
from otel_mlperf.recorder.core.faults import internal_error, warn_once
from otel_mlperf.recorder.instruments.cells import Labels, content_of
from otel_mlperf.recorder.instruments.instrument_series import (
    HUGE,
    MOST,
    Bound,
    InstrumentSeries,
    LabelSets,
    try_slowly,
)
from otel_mlperf.recorder.instruments.series_methods import (
    CounterSeries,
    GaugeSeries,
    HistogramSeries,
)

if TYPE_CHECKING:
    from otel_mlperf.recorder.instruments.instrument_series import SeriesInUse

_MOST_INSTRUMENTS: Final = 2000
_TOO_MANY = (
    "more than %d instruments: further instruments are counted as '%s'; use labels for parts of a "
    "name that vary"
)


class Instrument(InstrumentSeries):
    """Named instrument, which is itself its series without labels."""

    __slots__ = ("_sets", "unit")
    kind: ClassVar[str]

    def __init__(self, name: str, unit: str) -> None:
        super().__init__(name, _content(self.kind, name, unit))
        self.unit = unit

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy is the instrument of that name in the process that unpickles it.
        return _instrument, (self.usual, self.name, self.unit)


class Counter(Instrument, CounterSeries):
    """Counter with the metric name ``ml.user.<name>``; created by ``counter()``."""

    __slots__ = ()
    kind = "counter"

    def __init__(self, name: str, unit: str) -> None:
        super().__init__(name, unit)
        self._sets: LabelSets[CounterSeries] = LabelSets(
            name, self, lambda labels: CounterSeries(name, _content("counter", name, unit, labels))
        )

    def labels(self, **labels: Any) -> CounterSeries:
        """Return the series of a label set, for frequent counting: ``c.labels(lang="de")``."""
        return self._sets.find(labels)

    def add(self, value: float = 1, more: Any = None, /, **labels: Any) -> None:
        """Add ``value``, which must not be negative: ``tokens.add(512, lang="de")``.

        Labels may also be passed as in the OpenTelemetry API: ``tokens.add(512, {"lang": "de"})``.
        """
        if labels or more is not None:
            self._sets.find(labels, more).add(value)
        else:
            self.record_slowly(value)

    def bind(self, run: SeriesInUse, word: int) -> Bound:
        """Return the method that records values of this instrument in ``run``.

        ``word`` is the index of the first word of the cell for values without labels.
        """
        floats, at, slowly = run.recording.journal.floats, word + 1, self.record_slowly
        total, low, limit, find = 0.0, 0, MOST, self._sets.find

        # Inlined code of the series' method, extended by labels: a call would cost a third more.
        def add(_: InstrumentSeries, value: Any = 1, more: Any = None, /, **labels: Any) -> None:
            nonlocal total
            try:
                kind = value.__class__
                if (
                    not labels
                    and more is None
                    and (
                        (kind is int and value >= low)
                        or (kind is float and value >= 0.0 and value <= limit)
                    )
                ):
                    total += value
                    floats[at] = total
                elif labels or more is not None:
                    find(labels, more).add(value)
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


class Gauge(Instrument, GaugeSeries):
    """Gauge with the metric name ``ml.user.<name>``; created by ``gauge()``."""

    __slots__ = ()
    kind = "gauge"

    def __init__(self, name: str, unit: str) -> None:
        super().__init__(name, unit)
        self._sets: LabelSets[GaugeSeries] = LabelSets(
            name, self, lambda labels: GaugeSeries(name, _content("gauge", name, unit, labels))
        )

    def labels(self, **labels: Any) -> GaugeSeries:
        """Return the series of a label set, for code that sets values often."""
        return self._sets.find(labels)

    def set(self, value: float, more: Any = None, /, **labels: Any) -> None:
        """Set the current value: ``depth.set(3, queue="images")``; labels as in ``Counter.add``."""
        if labels or more is not None:
            self._sets.find(labels, more).set(value)
        else:
            self.record_slowly(value)

    def bind(self, run: SeriesInUse, word: int) -> Bound:
        """Return the method that records values of this instrument in ``run``.

        ``word`` is the index of the first word of the cell for values without labels.
        """
        floats, at, slowly = run.recording.journal.floats, word + 1, self.record_slowly
        least, low, limit, find = -MOST, -HUGE, MOST, self._sets.find

        # Inlined code of the series' method, extended by labels: a call would cost a third more.
        def set_value(_: InstrumentSeries, value: Any, more: Any = None, /, **labels: Any) -> None:
            try:
                kind = value.__class__
                if (
                    not labels
                    and more is None
                    and (
                        (kind is float and value >= least and value <= limit)
                        or (kind is int and value >= low)
                    )
                ):
                    floats[at] = value
                elif labels or more is not None:
                    find(labels, more).set(value)
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


class Histogram(Instrument, HistogramSeries):
    """Histogram with the metric name ``ml.user.<name>``; created by ``histogram()``."""

    __slots__ = ()
    kind = "histogram"

    def __init__(self, name: str, unit: str) -> None:
        super().__init__(name, unit)
        kind = self.kind
        self._sets: LabelSets[HistogramSeries] = LabelSets(
            name, self, lambda labels: HistogramSeries(name, _content(kind, name, unit, labels))
        )

    def labels(self, **labels: Any) -> HistogramSeries:
        """Return the series of a label set, for code that records values often."""
        return self._sets.find(labels)

    def record(self, value: float, more: Any = None, /, **labels: Any) -> None:
        """Record ``value``, which must not be negative: ``length.record(87, lang="de")``.

        Labels may be passed as in ``Counter.add``.
        """
        if labels or more is not None:
            self._sets.find(labels, more).record(value)
        else:
            self.record_slowly(value)

    def bind(self, run: SeriesInUse, word: int) -> Bound:
        """Return the method that records values of this instrument in ``run``.

        ``word`` is the index of the first word of the cell for values without labels.
        """
        return self.bind_with(run, word, self._sets.find)


for _class in (Counter, Gauge, Histogram):
    _class.usual = _class


def _content(kind: str, name: str, unit: str, labels: Labels = ()) -> tuple[Any, ...]:
    return content_of(kind, names.user_metric(name), unit, labels)


def counter(name: str, unit: str = "") -> Counter:
    """Return a counter of the program, published as ``ml.user.<name>``.

    Usage: ``c.add(5)`` or ``c.add(5, lang="de")``. For frequent counting, call
    ``german = c.labels(lang="de")`` once, and ``german.add(5)`` for each value. While nothing is
    recorded, ``add`` does nothing.

    Args:
        name: name of the counter; a name always returns the same counter.
        unit: UCUM unit (``By``, ``s``, ``{token}``), or empty.
    """
    return _instrument(Counter, name, unit)


def gauge(name: str, unit: str = "") -> Gauge:
    """Return a gauge of the program, published as ``ml.user.<name>``.

    Usage: ``g.set(3, queue="images")``.

    Args:
        name: name of the gauge; a name always returns the same gauge.
        unit: UCUM unit (``By``, ``s``, ``{item}``), or empty.
    """
    return _instrument(Gauge, name, unit)


def histogram(name: str, unit: str = "") -> Histogram:
    """Return a histogram of the program, published as ``ml.user.<name>``.

    Usage: ``h.record(87, lang="de")``. Buckets need no configuration: they are exponential, eight
    for each power of two.

    Args:
        name: name of the histogram; a name always returns the same histogram.
        unit: UCUM unit (``By``, ``s``, ``{token}``), or empty.
    """
    return _instrument(Histogram, name, unit)


_Made = TypeVar("_Made", Counter, Gauge, Histogram)
_instruments: dict[str, Any] = {}


def _instrument(kind: type[_Made], name: Any, unit: Any) -> _Made:
    text = safe_name_text(name)
    if text == UNNAMED:
        warn_once(f"{kind.kind}(): a name is required; this instrument is counted as '{UNNAMED}'")
    return one_of(_instruments, kind, text, unit)


Kind = TypeVar("Kind")


def one_of(instruments: dict[str, Any], kind: type[Kind], text: str, unit: Any, *more: Any) -> Kind:
    """Return the instrument with a name; create it if it is missing.

    A conflict with an existing instrument of the name (kind, unit) is resolved with a warning.

    Args:
        instruments: existing instruments, by name; their number is limited.
        kind: class of the instrument, constructed from name and unit.
        text: name of the instrument.
        unit: unit of the instrument, or empty.
        *more: further arguments of the class.
    """
    make: Any = kind
    unit_text = safe_name_text(unit) if unit else ""
    if text not in instruments and len(instruments) >= _MOST_INSTRUMENTS:
        warn_once(_TOO_MANY, _MOST_INSTRUMENTS, names.OTHER)
        text, unit_text = names.OTHER, ""
    instrument = instruments.get(text) or instruments.setdefault(text, make(text, unit_text, *more))
    if not isinstance(instrument, kind):
        other = f"{text}.{make.kind}"
        warn_once(
            "%s already exists as a %s; the %s is published as %s",
            text,
            instrument.kind,
            make.kind,
            other,
        )
        again = instruments.get(other)
        instrument = again if isinstance(again, kind) else make(other, unit_text, *more)
        instruments[other] = instrument
    if instrument.unit != unit_text:
        warn_once(
            f"{text} already has the unit '{instrument.unit}'; the unit '{unit_text}' is ignored"
        )
    found: Kind = instrument
    return found
