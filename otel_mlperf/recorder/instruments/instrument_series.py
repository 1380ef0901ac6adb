"""Series of counters, gauges and histograms: one per label set, with a fast recording method.

A series is one label set of a counter, gauge or histogram of the program. In each run a used series
gets a method of its own, bound to its cell by closure: no lock, no lookup. The code between load
and store never releases the GIL and runs no signal handler, so one cell serves all threads. When
the run ends or the process is forked, the limits of the method change so that no value fits any
more. A caller that still has the method then takes the slow path, which finds the current
recording. A value that would have to be fetched from a GPU is never read.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from math import isfinite, nan
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from otel_mlperf import names
from otel_mlperf.foreign_errors import is_foreign
from otel_mlperf.journal.layout import MOST_LABEL_SETS
from otel_mlperf.recorder.core.attribute_values import (
    MOST_ATTRIBUTES,
    NAME_BYTES,
    safe_name_text,
    safe_value,
)
from otel_mlperf.recorder.core.faults import internal_error, warn_once
from otel_mlperf.recorder.core.recording import active
from otel_mlperf.recorder.core.scrub import clean
from otel_mlperf.recorder.instruments.cells import OVERFLOW, Labels
from otel_mlperf.redaction import IN_PROCESS

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.recorder.core.recording import Recording
    from otel_mlperf.recorder.instruments.cells import Cells, Content
    from otel_mlperf.recorder.sections.parents import Parents

MOST = sys.float_info.max
"""The largest finite float."""
HUGE = 1 << 1024
"""Larger than any float: below it an integer that is too large raises OverflowError."""

S = TypeVar("S")
_TOO_MANY = (
    "more than {} label sets of {}: further label sets are summed in one series labelled {}=true"
)


class Bound:
    """The recording method of one series in one run, and the function that ends it."""

    __slots__ = ("end", "record")

    def __init__(self, record: Callable[..., None], end: Callable[[], None]) -> None:
        self.record, self.end = record, end


class InstrumentSeries:
    """One series: a label set of an instrument."""

    __slots__ = ("content", "name")
    method: ClassVar[str]
    """Name of the method that records."""
    low: ClassVar[float] = 0.0
    """The smallest value that may be recorded."""
    remedy: ClassVar[str] = "use a gauge"
    """Advice for smaller values."""
    usual: ClassVar[type[InstrumentSeries]]
    """The class while nothing is recorded."""

    def __init__(self, name: str, content: Content) -> None:
        self.name, self.content = name, content

    def bind(self, run: SeriesInUse, word: int) -> Bound:
        """Return the method that records into the cell at ``word``."""
        raise NotImplementedError

    def install(self, bound: Bound) -> None:
        """Make ``bound`` the recording method, through a class of its own.

        The interpreter finds a method of a class without a dictionary faster than anything else.
        """
        usual = self.usual
        # One store: a thread in the middle of a call completes it with the previous method.
        members = {"__slots__": (), self.method: bound.record}
        self.__class__ = type(usual.__name__, (usual,), members)

    def uninstall(self) -> None:
        """Look up the active recording from now on."""
        self.__class__ = self.usual

    def record_slowly(self, value: Any) -> None:
        """Record any value, or log why not, and take the fast path from then on."""
        try:
            number = plain_number(self.name, value)
            if number < 0 and self.low == 0:
                warn_once(f"{self.name}: a negative value is ignored; {self.remedy}")
            if isinstance(value, float) and not isfinite(value):
                warn_once(f"{self.name}: {value} is ignored; use log() for such values")
            recorder = active()
            if recorder is None or not self.low <= number <= MOST:
                return
            bound = recorder.series.bound(self)
            if bound is not None:
                # A class for each run, not for each call: most calls here are rejected values.
                if type(self).__dict__.get(self.method) is not bound.record:
                    self.install(bound)
                bound.record(self, number)
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)


class SeriesInUse:
    """The series that record into one run's cells."""

    def __init__(self, recording: Recording, parents: Parents, cells: Cells) -> None:
        self.recording, self.parents, self.cells = recording, parents, cells
        self._bound: dict[Content, Bound] = {}
        self._series: set[InstrumentSeries] = set()

    def bound(self, series: InstrumentSeries) -> Bound | None:
        """Return the recording method of a series; None if no cell is left."""
        content = self.cells.within_limits(series.content)
        bound = self._bound.get(content)
        if bound is None:
            word = self.cells.shared(content)
            if not word:
                return None
            # Two threads may bind concurrently; the first method is kept: each method has a sum of
            # its own in its closure, and would overwrite the other's.
            bound = self._bound.setdefault(content, series.bind(self, word))
        self._series.add(series)
        return bound

    def retire(self) -> None:
        """Disconnect all series from their cells: the memory belongs to a run that is over."""
        # First the methods, to which the program may refer, then the lookup of methods. Every value
        # is beyond the new limits and takes the slow path. That finds the next run, or a forked
        # child's own recording, whose sums start at 0 with a start time of their own.
        for bound in list(self._bound.values()):
            bound.end()
        for series in list(self._series):
            series.uninstall()
        self._bound, self._series = {}, set()


class LabelSets(Generic[S]):
    """The series of one instrument, by label set.

    Args:
        name: the instrument's name, for messages.
        plain: its series without labels.
        make: makes the series of a label set.
    """

    def __init__(self, name: str, plain: S, make: Callable[[Labels], S]) -> None:
        self._name, self._plain, self._make = name, plain, make
        self._series: dict[Labels, S] = {(): plain}
        self._known: dict[tuple[Any, ...], S] = {}
        """Series by labels as passed, where all values are text: 1 and True are equal."""

    def find(self, labels: Mapping[str, Any], more: Any = None) -> S:
        """Return the series with these labels and ``more`` (OpenTelemetry's form); never raises."""
        if more is not None:
            labels = self._joined(labels, more)
        try:
            return self._known[tuple(labels.items())]
        except (KeyError, TypeError):
            pass  # unknown so far, or a list
        try:
            return self._find(labels)
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)
            return self._plain

    def _joined(self, labels: Mapping[str, Any], more: Any) -> Mapping[str, Any]:
        try:
            if isinstance(more, Mapping):
                return {**more, **labels}
            warn_once(
                f"{self._name}: expected labels as keyword arguments, e.g. lang='de'; found "
                f"{more!r:.40}"
            )
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)
        return labels

    def _find(self, labels: Mapping[str, Any]) -> S:
        exact = {
            (name := safe_name_text(key)): IN_PROCESS.value(name, _text(value))
            for key, value in labels.items()
            if value is not None
        }
        series = self._of(tuple(sorted(exact.items())[:MOST_ATTRIBUTES]))
        is_text = all(value.__class__ is str for value in labels.values())
        if is_text and len(self._known) < 2 * MOST_LABEL_SETS:
            self._known[tuple(labels.items())] = series
        return series

    def _of(self, labels: Labels) -> S:
        series = self._series.get(labels)
        if series is not None:
            return series
        if len(self._series) > MOST_LABEL_SETS:
            warn_once(_TOO_MANY.format(MOST_LABEL_SETS, self._name, names.OVERFLOW))
            labels = OVERFLOW
        return self._series.setdefault(labels, self._make(labels))


def _text(value: Any) -> str:
    plain = safe_value(value)
    return clean(str(plain).lower() if isinstance(plain, bool) else str(plain), NAME_BYTES)


def try_slowly(slowly: Callable[[Any], None], value: Any, error: Exception) -> None:
    """Try the slow path after the fast path failed with ``error``.

    Raises:
        Exception: ``error`` itself, where a signal handler of the program raised it.
    """
    if is_foreign(error):
        raise error
    slowly(value)


def plain_number(name: str, value: Any) -> float:
    """Return a plain number; nan for other values and those that would be fetched from a GPU."""
    try:
        if isinstance(value, int | float):
            return float(value)
        if not hasattr(value, "is_cuda") and hasattr(value, "item"):  # NumPy and similar libraries
            return float(value.item())
    except OverflowError:
        warn_once(f"{name}: an integer too large for a float is ignored")
        return nan
    except (TypeError, ValueError):  # several numbers, or none
        pass
    warn_once(f"{name}: found a {type(value).__name__}, expected a plain number; ignored")
    return nan
