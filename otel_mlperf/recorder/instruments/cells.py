"""Where do counters, gauges, histograms and aggregated sections add up?

In cells of shared memory, one store each, so that sums are exact after a SIGKILL. An aggregated
section has a cell for each thread; when a thread ends, its cells wait for the next thread. A series
of a counter, gauge or histogram has one for all: nothing in between gives up the GIL.
"""

from __future__ import annotations

import threading
from math import nan
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names
from otel_mlperf.journal.layout import MAX_ENTRIES, MOST_LABEL_SETS
from otel_mlperf.recorder.core.attribute_values import safe_name_text
from otel_mlperf.recorder.core.faults import say_once
from otel_mlperf.recorder.core.name_registry import TOO_MANY_NAMES, implied_category
from otel_mlperf.recorder.instruments.aggregate import Aggregate, Sum

if TYPE_CHECKING:
    from otel_mlperf.recorder.core.recorder import Recorder
    from otel_mlperf.recorder.instruments.instrument_series import Bound, Series

Key = tuple[Any, ...]
Content = tuple[Any, ...]
Labels = tuple[tuple[str, str], ...]
OVERFLOW: Final[Labels] = ((names.OVERFLOW, "true"),)
_TOO_MANY = (
    "more than %d label sets, or than the journal has cells for: later ones of a name are added up "
    "in one series labelled %s=true; a label should have few values"
)
_NO_CELL = "no cell is left in the journal: counters and aggregated sections are lost, and counted"


def content_of(kind: str, name: str, unit: str, labels: Labels = ()) -> Content:
    """What a series is registered as, ``name`` being the metric's."""
    return ("cell", kind, name, unit, labels)


class _OfThread(dict[Key, int]):
    """One thread's cells: key to the index of the first word; given back when the thread ends."""

    __slots__ = ("_waiting",)

    def __init__(self, waiting: dict[Key, list[int]]) -> None:
        super().__init__()
        self._waiting = waiting

    def __del__(self) -> None:
        for key, word in self.items():
            self._waiting.setdefault(key, []).append(word)


class ThreadCells(threading.local):
    """The caller's cells."""

    def __init__(self, waiting: dict[Key, list[int]]) -> None:
        self.cells = _OfThread(waiting)


class Cells:
    """The cells of one journal."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._waiting: dict[Key, list[int]] = {}
        self._local = ThreadCells(self._waiting)
        self._shared: dict[Content, int] = {}
        self._bound: dict[Content, Bound] = {}
        self._series: set[Series] = set()
        self._numbers: dict[Content, int] = {}
        self._sums: dict[Any, Sum] = {}
        self._labelled = self._taken = 0

    # -- counters, gauges, histograms ------------------------------------------------------------

    def add(self, name: str, unit: str, value: float, labels: Labels = ()) -> None:
        """Adds to a counter of the package's own."""
        word = self.one(content_of("counter", name, unit, labels))
        if word:
            # Nothing between load and store gives up the GIL or runs a signal handler.
            self._recorder.journal.floats[word + 1] += value

    def set(self, name: str, unit: str, value: float, labels: Labels = ()) -> None:
        """Sets a gauge of the package's own: the last value wins."""
        word = self.one(content_of("gauge", name, unit, labels))
        if word:
            self._recorder.journal.floats[word + 1] = value

    def one(self, content: Content) -> int:
        """The cell of a series, the same for all threads; 0 when none is left."""
        if self._recorder.is_retired:
            return 0
        word = self._shared.get(content)
        if word is None:
            word = self.take(content)
            if word and content[1] == "gauge":
                self._recorder.journal.floats[word + 1] = nan  # nobody has set it
            word = self._shared.setdefault(content, word)
        return word

    def bound(self, series: Series) -> Bound | None:
        """What records for a series of the program's; None when no cell is left."""
        content = self._within_limits(series.content)
        found = self._bound.get(content)
        if found is None:
            word = self.one(content)
            if not word:
                return None
            found = self._bound.setdefault(content, series.bind(self._recorder, word))
        self._series.add(series)
        return found

    def retire(self) -> None:
        """From now on nobody finds a cell: the memory belongs to a run that is over."""
        for bound in list(self._bound.values()):
            bound.end()
        for series in list(self._series):
            series.uninstall()
        self._bound, self._series = {}, set()

    # -- cells -----------------------------------------------------------------------------------

    def word(self, key: Key, content: Content) -> int:
        """This thread's cell for ``key``; 0 when none is left."""
        if self._recorder.is_retired:
            return 0
        cells = self._local.cells
        word = cells.get(key)
        if word is None:
            waiting = self._waiting.get(key)
            word = waiting.pop() if waiting else self.take(content)
            cells[key] = word
        return word

    def take(self, content: Content) -> int:
        """Takes one more cell; 0 when none is left, which is counted."""
        self._taken += 1
        word = self._recorder.journal.cell(self._entry(content))
        if not word:
            say_once(_NO_CELL)
        return word

    def _entry(self, content: Content) -> int:
        """One entry for all cells of a content: a reader adds up what has the same number."""
        number = self._numbers.get(content)
        if number is None:
            number = self._numbers.setdefault(content, self._recorder.journal.entry(content))
        return number

    def _within_limits(self, content: Content) -> Content:
        """The content, with the one label of what is too much where it is too much."""
        if not content[4] or content in self._shared:
            return content
        cells = self._recorder.journal.shape.cells
        if self._labelled < MOST_LABEL_SETS and self._taken < cells - cells // 4:
            self._labelled += 1
            return content
        say_once(_TOO_MANY, MOST_LABEL_SETS, names.OVERFLOW)
        return (*content[:4], OVERFLOW)

    # -- aggregated sections ---------------------------------------------------------------------

    def aggregate(self, name: Any, category: str | None) -> Aggregate:
        """A section that is only added up."""
        key = name if category is None else (name, category)
        found = self._sums.get(key)
        if found is None:
            if len(self._sums) >= MAX_ENTRIES:
                say_once(TOO_MANY_NAMES, MAX_ENTRIES)
                key = name = names.OTHER
            text = safe_name_text(name)
            kind = safe_name_text(category) if category else implied_category(text)
            found = self._sums.setdefault(key, Sum(self._recorder, self._local, text, kind))
        return Aggregate(found)
