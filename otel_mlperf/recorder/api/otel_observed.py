"""Observable instruments of OpenTelemetry: scheduling and failures of their callbacks.

Callbacks are called before a step, at most every five seconds, and when the run ends. A thread of
their own would take the interpreter away from the program in the middle of a step. Their cost is
bounded, too: after slow callbacks, a thousand times their duration passes before the next call. A
failure belongs to the program; it is counted and logged once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Final

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions

from otel_mlperf.journal.layout import MOST_LABEL_SETS
from otel_mlperf.recorder.core.faults import callback_failed, internal_error
from otel_mlperf.recorder.instruments.cells import content_of
from otel_mlperf.recorder.instruments.instrument_series import LabelSets
from otel_mlperf.recorder.instruments.series_methods import GaugeSeries

if TYPE_CHECKING:
    from otel_mlperf.recorder.instruments.cells import Labels
    from otel_mlperf.recorder.lifecycle.run import Run

_EVERY_NS: Final = 5_000_000_000
_RATIO: Final = 1000
"""Time of the program for each nanosecond that callbacks take."""
_MOST: Final = 2 * MOST_LABEL_SETS
_OPTIONS: Final = CallbackOptions()
_asked: list[ObservedInstrument] = []


class ObservedInstrument:
    """An instrument whose values are read by callbacks."""

    kind: ClassVar[str]
    call: ClassVar[str]
    """The call that made it, for messages."""

    def __init__(self, name: str, unit: str = "", scope: Labels = ()) -> None:
        self.unit = unit
        # Callbacks return a total: it is stored unchanged, whatever the kind of the instrument.
        plain = GaugeSeries(name, content_of(self.kind, name, unit, scope))
        self._sets: LabelSets[GaugeSeries] = LabelSets(
            name,
            plain,
            lambda labels: GaugeSeries(name, content_of(self.kind, name, unit, (*scope, *labels))),
        )
        self._callbacks: tuple[Callable[[CallbackOptions], Iterable[Any]], ...] = ()

    def ask(self, callbacks: Iterable[Any]) -> None:
        """Add callbacks, which are called from now on."""
        if not self._callbacks:
            _asked.append(self)
        self._callbacks = (*self._callbacks, *map(_callable, callbacks))

    def look(self) -> None:
        """Call the callbacks once."""
        for callback in self._callbacks:
            try:
                for observation in islice(callback(_OPTIONS) or (), _MOST):
                    series = self._sets.find({}, observation.attributes)
                    series.set(observation.value)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the program's own
                callback_failed(self.call, callback, error)


class ObservedCounter(ObservedInstrument, metrics.ObservableCounter):
    """A sum that only grows."""

    kind = "counter"
    call = "create_observable_counter"


class ObservedUpDownCounter(ObservedInstrument, metrics.ObservableUpDownCounter):
    """A sum that can also decrease."""

    kind = "updowncounter"
    call = "create_observable_up_down_counter"


class ObservedGauge(ObservedInstrument, metrics.ObservableGauge):
    """A value that is read."""

    kind = "gauge"
    call = "create_observable_gauge"


class ObservedWatch:
    """Schedule of all callbacks while one run lasts.

    Args:
        clock: monotonic nanoseconds.
    """

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._due_ns = 0

    def look(self) -> None:
        """Call the callbacks if they are due; otherwise it costs one clock read."""
        if _asked and self._clock() >= self._due_ns:
            self.ask_all()

    def ask_all(self) -> None:
        """Call the callbacks now; never raises."""
        try:
            began = self._clock()
            self._due_ns = began + _EVERY_NS  # first: a callback may itself start a step
            for instrument in tuple(_asked):
                instrument.look()
            ended = self._clock()
            self._due_ns = ended + max(_EVERY_NS, _RATIO * (ended - began))
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)


def watch(run: Run) -> None:
    """Call the callbacks as long as ``run`` lasts."""
    recorder = run._recorder
    if recorder is not None:
        asked = ObservedWatch()
        recorder.stepping.before_step.append(asked.look)
        run.before_end.append(asked.ask_all)


def _callable(callback: Any) -> Callable[[CallbackOptions], Iterable[Any]]:
    """Return a function that returns the values; for a generator its next turn, as in the API."""
    if not isinstance(callback, Generator):
        return callback  # type: ignore[no-any-return]
    is_begun = False

    def turn(options: CallbackOptions) -> Iterable[Any]:
        nonlocal is_begun
        try:
            if not is_begun:
                is_begun = True
                next(callback)
            values: Iterable[Any] = callback.send(options)
        except StopIteration:
            return ()
        return values

    return turn
