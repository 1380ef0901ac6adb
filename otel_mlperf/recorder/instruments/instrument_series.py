"""Series of counters, gauges and histograms: one per label set, with a fast recording method.

In each run, a series that is used gets its own recording method, bound to the cell by closure
variables: the method needs no lock and no lookup. All threads share one cell, because the code
between load and store never releases the GIL and runs no signal handler.

When the run ends or the process is forked, the limits of the method are changed so that it rejects
every value. A caller that still refers to the method then takes the slow path, which looks up the
active recording. A value is never read if that would wait for a GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from math import isfinite, nan
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from otel_mlperf import names
from otel_mlperf.foreign_errors import is_foreign
from otel_mlperf.journal.layout import MAX_LABEL_SETS
from otel_mlperf.recorder.core.attribute_values import (
    MAX_ATTRIBUTES,
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
"""Maximum finite float."""
HUGE = 1 << 1024
"""Integer beyond the range of floats, used as a limit that rejects all values."""

S = TypeVar("S")
_TOO_MANY = (
    "more than {} label sets of {}: further label sets are summed in one series labelled {}=true"
)


class Bound:
    """Recording method of one series in one run, and the function that disables it."""

    __slots__ = ("end", "record")

    def __init__(self, record: Callable[..., None], end: Callable[[], None]) -> None:
        self.record, self.end = record, end


class InstrumentSeries:
    """Series of one label set of an instrument."""

    __slots__ = ("content", "name")
    method: ClassVar[str]
    """Name of the recording method."""
    low: ClassVar[float] = 0.0
    """Minimum value that may be recorded."""
    remedy: ClassVar[str] = "use a gauge"
    """Advice in the warning about smaller values."""
    usual: ClassVar[type[InstrumentSeries]]
    """Class of the series while no recording method is installed."""

    def __init__(self, name: str, content: Content) -> None:
        self.name, self.content = name, content

    def bind(self, run: SeriesInUse, word: int) -> Bound:
        """Return the recording method of this series, for the cell that starts at word ``word``."""
        raise NotImplementedError

    def install(self, bound: Bound) -> None:
        """Make ``bound`` the recording method, by a new class for this series.

        The interpreter looks up a class's method fastest, if instances have no ``__dict__``.
        """
        usual = self.usual
        # A single store: a concurrent call in another thread completes with the previous method.
        members = {"__slots__": (), self.method: bound.record}
        self.__class__ = type(usual.__name__, (usual,), members)

    def uninstall(self) -> None:
        """Remove the recording method, so that calls look up the active recording."""
        self.__class__ = self.usual

    def record_slowly(self, value: Any) -> None:
        """Record any value, or warn why it is rejected, and install the fast recording method."""
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
                # Install once per run: calls with unusual types reach this line repeatedly.
                if type(self).__dict__.get(self.method) is not bound.record:
                    self.install(bound)
                bound.record(self, number)
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)


class SeriesInUse:
    """Series that record into the cells of one run."""

    def __init__(self, recording: Recording, parents: Parents, cells: Cells) -> None:
        self.recording, self.parents, self.cells = recording, parents, cells
        self._bound: dict[Content, Bound] = {}
        self._series: set[InstrumentSeries] = set()

    def bound(self, series: InstrumentSeries) -> Bound | None:
        """Return the recording method of a series; None if no cell is free."""
        content = self.cells.within_limits(series.content)
        bound = self._bound.get(content)
        if bound is None:
            word = self.cells.shared(content)
            if not word:
                return None
            # Two threads may bind concurrently; only the first method is used: each method has its
            # own sum in its closure, and would overwrite the sum of the other.
            bound = self._bound.setdefault(content, series.bind(self, word))
        self._series.add(series)
        return bound

    def retire(self) -> None:
        """Disconnect all series from the cells of a run that has ended."""
        # Disable methods first, because the program may still refer to them; then remove them from
        # the series. Every value then takes the slow path, which finds the next run or the forked
        # child's own recording, whose sums start at 0.
        for bound in list(self._bound.values()):
            bound.end()
        for series in list(self._series):
            series.uninstall()
        self._bound, self._series = {}, set()


class LabelSets(Generic[S]):
    """Series of one instrument, by label set.

    Args:
        name: the instrument's name, for messages.
        plain: the instrument's series without labels.
        make: creates the series of a label set.
    """

    def __init__(self, name: str, plain: S, make: Callable[[Labels], S]) -> None:
        self._name, self._plain, self._make = name, plain, make
        self._series: dict[Labels, S] = {(): plain}
        self._known: dict[tuple[Any, ...], S] = {}
        """Cache of series by labels as passed; text values only, because 1 and True are equal."""

    def find(self, labels: Mapping[str, Any], more: Any = None) -> S:
        """Return the series of a label set; if ``labels`` is empty or invalid, the plain series.

        ``more`` is a mapping of further labels, as the OpenTelemetry API passes them.
        """
        if more is not None:
            labels = self._joined(labels, more)
        try:
            return self._known[tuple(labels.items())]
        except (KeyError, TypeError):
            pass  # not cached yet, or an unhashable value
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
        series = self._of(tuple(sorted(exact.items())[:MAX_ATTRIBUTES]))
        is_text = all(value.__class__ is str for value in labels.values())
        if is_text and len(self._known) < 2 * MAX_LABEL_SETS:
            self._known[tuple(labels.items())] = series
        return series

    def _of(self, labels: Labels) -> S:
        series = self._series.get(labels)
        if series is not None:
            return series
        if len(self._series) > MAX_LABEL_SETS:
            warn_once(_TOO_MANY.format(MAX_LABEL_SETS, self._name, names.OVERFLOW))
            labels = OVERFLOW
        return self._series.setdefault(labels, self._make(labels))


def _text(value: Any) -> str:
    plain = safe_value(value)
    return clean(str(plain).lower() if isinstance(plain, bool) else str(plain), NAME_BYTES)


def try_slowly(slowly: Callable[[Any], None], value: Any, error: Exception) -> None:
    """Record a value by the slow path after the fast path failed with ``error``.

    Raises:
        Exception: ``error`` itself, if a signal handler of the program raised it.
    """
    if is_foreign(error):
        raise error
    slowly(value)


def plain_number(name: str, value: Any) -> float:
    """Return a value as float; nan, with a warning about ``name``, if it is no plain number."""
    try:
        if isinstance(value, int | float):
            return float(value)
        if not hasattr(value, "is_cuda") and hasattr(value, "item"):  # NumPy and similar libraries
            return float(value.item())
    except OverflowError:
        warn_once(f"{name}: an integer too large for a float is ignored")
        return nan
    except (TypeError, ValueError):  # several numbers, or no number
        pass
    warn_once(f"{name}: found a {type(value).__name__}, expected a plain number; ignored")
    return nan
