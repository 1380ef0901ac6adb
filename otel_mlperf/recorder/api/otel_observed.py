"""Observable instruments of OpenTelemetry, and the schedule of their callbacks.

Callbacks are called before a step, at most every five seconds, and when the run ends. They have no
thread, which would compete for the GIL in the middle of steps. Their cost is at most 0.1 %: the
next call follows after at least a thousand times their duration. A callback's failure is counted
and logged once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Final

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions

from otel_mlperf.journal.layout import MAX_LABEL_SETS
from otel_mlperf.recorder.core.faults import callback_failed, internal_error
from otel_mlperf.recorder.instruments.cells import content_of
from otel_mlperf.recorder.instruments.instrument_series import LabelSets
from otel_mlperf.recorder.instruments.series_methods import GaugeSeries

if TYPE_CHECKING:
    from otel_mlperf.recorder.instruments.cells import Labels
    from otel_mlperf.recorder.lifecycle.run import Run

_EVERY_NS: Final = 5_000_000_000
_MIN_INTERVAL_RATIO: Final = 1000
"""Minimum interval between calls, as a multiple of the callbacks' duration."""
_MAX_OBSERVATIONS: Final = 2 * MAX_LABEL_SETS
_OPTIONS: Final = CallbackOptions()
_asked: list[ObservedInstrument] = []


class ObservedInstrument:
    """Instrument whose values are returned by callbacks."""

    kind: ClassVar[str]
    call: ClassVar[str]
    """Name of the API call that creates the instrument, for messages."""

    def __init__(self, name: str, unit: str = "", scope: Labels = ()) -> None:
        self.unit = unit
        # Gauges for all kinds of instruments, because callbacks return totals, stored unchanged.
        plain = GaugeSeries(name, content_of(self.kind, name, unit, scope))
        self._sets: LabelSets[GaugeSeries] = LabelSets(
            name,
            plain,
            lambda labels: GaugeSeries(name, content_of(self.kind, name, unit, (*scope, *labels))),
        )
        self._callbacks: tuple[Callable[[CallbackOptions], Iterable[Any]], ...] = ()

    def ask(self, callbacks: Iterable[Any]) -> None:
        """Register callbacks."""
        if not self._callbacks:
            _asked.append(self)
        self._callbacks = (*self._callbacks, *map(_callable, callbacks))

    def look(self) -> None:
        """Call the callbacks once and store their values."""
        for callback in self._callbacks:
            try:
                for observation in islice(callback(_OPTIONS) or (), _MAX_OBSERVATIONS):
                    series = self._sets.find({}, observation.attributes)
                    series.set(observation.value)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the program's own
                callback_failed(self.call, callback, error)


class ObservedCounter(ObservedInstrument, metrics.ObservableCounter):
    """Monotonic sum, read by callbacks."""

    kind = "counter"
    call = "create_observable_counter"


class ObservedUpDownCounter(ObservedInstrument, metrics.ObservableUpDownCounter):
    """Sum that may also decrease, read by callbacks."""

    kind = "updowncounter"
    call = "create_observable_up_down_counter"


class ObservedGauge(ObservedInstrument, metrics.ObservableGauge):
    """Current value, read by callbacks."""

    kind = "gauge"
    call = "create_observable_gauge"


class ObservedWatch:
    """Schedule of all callbacks during one run.

    Args:
        clock: returns monotonic time in ns.
    """

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._due_ns = 0

    def look(self) -> None:
        """Call the callbacks if they are due; costs one clock read otherwise."""
        if _asked and self._clock() >= self._due_ns:
            self.ask_all()

    def ask_all(self) -> None:
        """Call all callbacks immediately; never raises."""
        try:
            began = self._clock()
            self._due_ns = began + _EVERY_NS  # first: a callback may itself start a step
            for instrument in tuple(_asked):
                instrument.look()
            ended = self._clock()
            self._due_ns = ended + max(_EVERY_NS, _MIN_INTERVAL_RATIO * (ended - began))
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)


def watch(run: Run) -> None:
    """Call the callbacks during ``run``."""
    recorder = run._recorder
    if recorder is not None:
        schedule = ObservedWatch()
        recorder.stepping.before_step.append(schedule.look)
        run.before_end.append(schedule.ask_all)


def _callable(callback: Any) -> Callable[[CallbackOptions], Iterable[Any]]:
    """Return a function that returns the values; for a generator, it resumes the generator."""
    if not isinstance(callback, Generator):
        return callback  # type: ignore[no-any-return]
    is_started = False

    def turn(options: CallbackOptions) -> Iterable[Any]:
        nonlocal is_started
        try:
            if not is_started:
                is_started = True
                next(callback)
            values: Iterable[Any] = callback.send(options)
        except StopIteration:
            return ()
        return values

    return turn
