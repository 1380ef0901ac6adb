"""OpenTelemetry meters of other libraries, whose metrics are recorded as series.

Metrics keep the names that their libraries chose, so that dashboards find them. A metric whose name
this package uses too is published below ``ml.user.``, because Prometheus drops scopes. The same
name is the same instrument, whichever library requests it; its scope is that of the first library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from opentelemetry import metrics
from opentelemetry.metrics import Meter, MeterProvider
from opentelemetry.trace import get_current_span

from otel_mlperf import names
from otel_mlperf.recorder.api.instruments import one_of
from otel_mlperf.recorder.api.otel_observed import (
    ObservedCounter,
    ObservedGauge,
    ObservedInstrument,
    ObservedUpDownCounter,
)
from otel_mlperf.recorder.core.attribute_values import UNNAMED, safe_name_text
from otel_mlperf.recorder.core.faults import internal_error, warn_once
from otel_mlperf.recorder.instruments.cells import content_of
from otel_mlperf.recorder.instruments.instrument_series import LabelSets
from otel_mlperf.recorder.instruments.series_methods import (
    CounterSeries,
    GaugeSeries,
    HistogramSeries,
    UpDownSeries,
)
from otel_mlperf.recorder.sections.section_context import CURRENT

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.recorder.instruments.cells import Labels

_OWN: Final = {metric.name for metric in names.METRICS}
_OURS: Final = names.user_metric("")
_instruments: dict[str, Any] = {}
"""Instruments of all meters, by their published name."""


class _Labelled:
    """The series of one instrument, by the attributes of a call."""

    kind: ClassVar[str]
    series: ClassVar[Callable[..., Any]]

    def __init__(self, name: str, unit: str = "", scope: Labels = ()) -> None:
        self.unit = unit
        self._plain = self.series(name, content_of(self.kind, name, unit, scope))
        self._sets: LabelSets[Any] = LabelSets(
            name,
            self._plain,
            lambda labels: self.series(name, content_of(self.kind, name, unit, (*scope, *labels))),
        )

    def of(self, attributes: Any) -> Any:
        """Return the series with these attributes."""
        return self._plain if attributes is None else self._sets.find({}, attributes)


class JournalCounter(_Labelled, metrics.Counter):
    """A sum that only grows."""

    kind = "counter"
    series = CounterSeries

    def add(self, amount: float, attributes: Any = None, context: Any = None) -> None:
        """Add ``amount``, which must not be negative."""
        self.of(attributes).add(amount)


class JournalUpDownCounter(_Labelled, metrics.UpDownCounter):
    """A sum that can also decrease."""

    kind = "updowncounter"
    series = UpDownSeries

    def add(self, amount: float, attributes: Any = None, context: Any = None) -> None:
        """Add ``amount``."""
        self.of(attributes).add(amount)


class JournalGauge(_Labelled, metrics._Gauge):
    """A current value that is set."""

    kind = "gauge"
    series = GaugeSeries

    def set(self, amount: float, attributes: Any = None, context: Any = None) -> None:
        """Set the current value."""
        self.of(attributes).set(amount)


class JournalHistogram(_Labelled, metrics.Histogram):
    """A distribution of values; its buckets need no choice."""

    kind = "histogram"
    series = HistogramSeries

    def record(self, amount: float, attributes: Any = None, context: Any = None) -> None:
        """Count ``amount``, which must not be negative, in the span of ``context`` if given."""
        section = _section_of(context)
        if section is None:
            self.of(attributes).record(amount)
            return
        token = CURRENT.set(section)
        try:
            self.of(attributes).record(amount)
        finally:
            CURRENT.reset(token)


class JournalMeterProvider(MeterProvider):
    """Provider of meters whose instruments record into the active run's journal."""

    def get_meter(
        self, name: Any = "", version: Any = None, schema_url: Any = None, attributes: Any = None
    ) -> Meter:
        """Return a meter whose instruments keep the library's name, version and schema."""
        meter = JournalMeter(name)
        fields = zip(names.SCOPE_FIELDS, (name, version, schema_url), strict=True)
        meter.scope = tuple((key, safe_name_text(value)) for key, value in fields if value)
        return meter


class JournalMeter(Meter):
    """Factory of instruments; the same name is the same instrument."""

    scope: Labels = ()
    """The instrumentation scope, as labels, which are not labels any more when it is sent."""

    def create_counter(self, name: Any, unit: Any = "", description: Any = "") -> Any:
        """Return a counter."""
        return _made(JournalCounter, name, unit, self.scope)

    def create_up_down_counter(self, name: Any, unit: Any = "", description: Any = "") -> Any:
        """Return a counter that can also decrease."""
        return _made(JournalUpDownCounter, name, unit, self.scope)

    def create_gauge(self, name: Any, unit: Any = "", description: Any = "") -> Any:
        """Return a gauge."""
        return _made(JournalGauge, name, unit, self.scope)

    def create_histogram(
        self, name: Any, unit: Any = "", description: Any = "", **advice: Any
    ) -> Any:
        """Return a histogram; advice about buckets is ignored."""
        return _made(JournalHistogram, name, unit, self.scope)

    def create_observable_counter(
        self, name: Any, callbacks: Any = None, unit: Any = "", description: Any = ""
    ) -> Any:
        """Return a counter whose total is read by callbacks."""
        return _observed(ObservedCounter, name, unit, callbacks, self.scope)

    def create_observable_up_down_counter(
        self, name: Any, callbacks: Any = None, unit: Any = "", description: Any = ""
    ) -> Any:
        """Return a counter that can also decrease, whose total is read by callbacks."""
        return _observed(ObservedUpDownCounter, name, unit, callbacks, self.scope)

    def create_observable_gauge(
        self, name: Any, callbacks: Any = None, unit: Any = "", description: Any = ""
    ) -> Any:
        """Return a gauge whose value is read by callbacks."""
        return _observed(ObservedGauge, name, unit, callbacks, self.scope)


def _section_of(context: Any) -> Any:
    """Return the section whose span is current in a context; None without a context."""
    if context is None:
        return None
    try:
        return getattr(get_current_span(context), "section", None)
    except Exception as error:  # noqa: BLE001 - recording never raises
        internal_error(error)
        return None


def _made(kind: type[Any], name: Any, unit: Any, scope: Labels) -> Any:
    text = safe_name_text(name)
    if text == UNNAMED:
        warn_once(f"an OpenTelemetry {kind.kind} without a name is counted as '{UNNAMED}'")
    if text in _OWN or text.startswith(_OURS):
        warn_once(f"the {kind.kind} {text} has the name of a built-in metric: published as "
                  f"{names.user_metric(text)}")  # fmt: skip
        text = names.user_metric(text)
    return one_of(_instruments, kind, text, unit, scope)


def _observed(
    kind: type[ObservedInstrument], name: Any, unit: Any, callbacks: Any, scope: Labels
) -> Any:
    instrument = _made(kind, name, unit, scope)
    try:
        instrument.ask(callbacks or ())
    except Exception as error:  # noqa: BLE001 - recording never raises
        internal_error(error)
    return instrument
