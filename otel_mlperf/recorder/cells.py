"""Where do counters, gauges and aggregated sections add up?

In cells of shared memory, one store each, so that sums are exact after a SIGKILL. A counter has one
cell for each thread that added to it; when a thread ends, its cells wait for the next thread.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any

from otel_mlperf.recorder.aggregate import Aggregate, Sum
from otel_mlperf.recorder.attributes import UNNAMED, safe_name_text
from otel_mlperf.recorder.faults import internal_error, say_once

if TYPE_CHECKING:
    from otel_mlperf.recorder.state import Recorder

Key = tuple[Any, ...]


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
        self._numbers: dict[Key, int] = {}
        self._gauges: dict[str, int] = {}
        self._sums: dict[Any, Sum] = {}

    def add(self, name: str, unit: str, value: float) -> None:
        """Adds to a counter."""
        word = self.word(("counter", name, unit), ("cell", "counter", name, unit))
        if word:
            journal = self._recorder.journal
            # Nothing between load and store gives up the GIL or runs a signal handler.
            journal.floats[word + 1] += value
            journal.words[word + 2] += 1

    def set(self, name: str, unit: str, value: float) -> None:
        """Sets a gauge: one cell for all threads, the last value wins."""
        journal = self._recorder.journal
        word = self._gauges.get(name)
        if word is None:
            number = self._entry(("cell", "gauge", name, unit))
            word = self._gauges.setdefault(name, journal.cell(number))
        if word and not self._recorder.is_retired:
            journal.floats[word + 1] = value
            journal.words[word + 2] += 1

    def word(self, key: Key, content: Key) -> int:
        """This thread's cell for ``key``; 0 when none is left."""
        if self._recorder.is_retired:
            return 0
        cells = self._local.cells
        word = cells.get(key)
        if word is None:
            waiting = self._waiting.get(key)
            word = waiting.pop() if waiting else self._new_cell(content)
            cells[key] = word
        return word

    def _new_cell(self, content: Key) -> int:
        return self._recorder.journal.cell(self._entry(content))

    def _entry(self, content: Key) -> int:
        """One entry for the cells of all threads: a reader adds up what has the same number."""
        number = self._numbers.get(content)
        if number is None:
            number = self._numbers.setdefault(content, self._recorder.journal.entry(content))
        return number

    def aggregate(self, name: Any, category: str | None) -> Aggregate:
        """A section that is only added up."""
        key = name if category is None else (name, category)
        found = self._sums.get(key)
        if found is None:
            from otel_mlperf.recorder.registry import implied_category

            text = safe_name_text(name)
            kind = safe_name_text(category) if category else implied_category(text)
            found = self._sums[key] = Sum(self._recorder, self._local, text, kind)
        return Aggregate(found)


class Counter:
    """A sum that only grows, ``ml.user.<name>``; made by ``counter()``."""

    __slots__ = ("_name", "_unit")

    def __init__(self, name: str, unit: str = "") -> None:
        self._name = safe_name_text(name)
        if self._name == UNNAMED:
            say_once("counter(): a name is expected; without one it counts as '%s'", UNNAMED)
        self._unit = safe_name_text(unit) if unit else ""

    def add(self, value: float = 1) -> None:
        """Adds ``value``, which must not be negative."""
        try:
            found = _number(self._name, value)
            recorder = _recorder()
            if recorder is None or found is None:
                return
            if found < 0:
                say_once(f"counter {self._name}: a negative value is left out; use a gauge")
                return
            recorder.cells.add(self._name, self._unit, found)
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)


class Gauge:
    """A value that goes up and down, ``ml.user.<name>``; made by ``gauge()``."""

    __slots__ = ("_name", "_unit")

    def __init__(self, name: str, unit: str = "") -> None:
        self._name = safe_name_text(name)
        if self._name == UNNAMED:
            say_once("gauge(): a name is expected; without one it counts as '%s'", UNNAMED)
        self._unit = safe_name_text(unit) if unit else ""

    def set(self, value: float) -> None:
        """The value from now on."""
        try:
            found = _number(self._name, value)
            recorder = _recorder()
            if recorder is not None and found is not None:
                recorder.cells.set(self._name, self._unit, found)
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)


def counter(name: str, unit: str = "") -> Counter:
    """A counter of the program's own, published as ``ml.user.<name>``.

    May be made before the run starts; adding while nothing is recorded does nothing.
    """
    return Counter(name, unit)


def gauge(name: str, unit: str = "") -> Gauge:
    """A gauge of the program's own, published as ``ml.user.<name>``."""
    return Gauge(name, unit)


def _recorder() -> Recorder | None:
    from otel_mlperf.recorder.span import active

    return active()


def _number(name: str, value: Any) -> float | None:
    """A plain number; None for what would have to be fetched from a GPU, or is none."""
    if not isinstance(value, int | float):
        numpy_like = getattr(value, "item", None)
        if hasattr(value, "is_cuda") or numpy_like is None:
            say_once(f"counter or gauge {name} got a {type(value)}, plain numbers are expected; "
                     "left out")  # fmt: skip
            return None
        value = numpy_like()
    found = float(value)
    return found if math.isfinite(found) else None
