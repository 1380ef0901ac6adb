"""OpenTelemetry meter provider that records other libraries' metrics as series.

Metrics keep the names that their libraries chose, so that dashboards find them. Names that this
package uses itself get the prefix ``ml.user.``, because Prometheus drops scopes. Instruments with
the same name are one instrument, with the scope of the library that created it first.
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
    """Base of instruments with a series for each set of attributes."""

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
        """Return the series of a set of attributes."""
        return self._plain if attributes is None else self._sets.find({}, attributes)


class JournalCounter(_Labelled, metrics.Counter):
    """Counter that records into the active run."""

    kind = "counter"
    series = CounterSeries

    def add(self, amount: float, attributes: Any = None, context: Any = None) -> None:
        """Add ``amount``, which must not be negative."""
        self.of(attributes).add(amount)


class JournalUpDownCounter(_Labelled, metrics.UpDownCounter):
    """Up-down counter that records into the active run."""

    kind = "updowncounter"
    series = UpDownSeries

    def add(self, amount: float, attributes: Any = None, context: Any = None) -> None:
        """Add ``amount``."""
        self.of(attributes).add(amount)


class JournalGauge(_Labelled, metrics._Gauge):
    """Gauge that records into the active run."""

    kind = "gauge"
    series = GaugeSeries

    def set(self, amount: float, attributes: Any = None, context: Any = None) -> None:
        """Set the current value."""
        self.of(attributes).set(amount)


class JournalHistogram(_Labelled, metrics.Histogram):
    """Histogram that records into the active run, with exponential buckets."""

    kind = "histogram"
    series = HistogramSeries

    def record(self, amount: float, attributes: Any = None, context: Any = None) -> None:
        """Record ``amount``, which must not be negative; ``context`` determines its exemplar."""
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
        """Return a meter with the library's name, version and schema URL as scope."""
        meter = JournalMeter(name)
        fields = zip(names.SCOPE_FIELDS, (name, version, schema_url), strict=True)
        meter.scope = tuple((key, safe_name_text(value)) for key, value in fields if value)
        return meter


class JournalMeter(Meter):
    """Factory of instruments; a name always returns the same instrument."""

    scope: Labels = ()
    """Instrumentation scope in the form of labels; exporters convert it to a scope."""

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
    """Return the section whose span is current in a context, or None."""
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
