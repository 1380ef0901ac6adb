"""For how long does Python's garbage collector hold up the program, and what does it find?

The interpreter calls before and after each collection, in whichever thread it began, which costs
1.2 µs, half of it the interpreter's own. The calls make no object that the collector would look at,
and take no cell: those are there before. A forked child counts nothing.
"""

from __future__ import annotations

import gc
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from otel_mlperf import names
from otel_mlperf.recorder.core.faults import internal_error
from otel_mlperf.recorder.instruments.cells import content_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.names import Metric
    from otel_mlperf.recorder.core.recording import Recording
    from otel_mlperf.recorder.instruments.cells import Cells

_GENERATIONS = 3
_METRICS = (names.GC_COLLECTIONS, names.GC_COLLECTED, names.GC_UNCOLLECTABLE, names.GC_TIME)


def watch_garbage(recording: Recording, cells: Cells) -> None:
    """Counts collections from now on, until the recording is retired."""
    places = [_places(cells, metric) for metric in _METRICS]
    if not all(map(all, places)):
        return
    watch = _watch(recording, *places)
    gc.callbacks.append(watch)

    def end() -> None:
        with suppress(ValueError):  # the program has emptied the list
            gc.callbacks.remove(watch)

    recording.at_retire.append(end)


def _watch(
    recording: Recording,
    collections: list[int],
    collected: list[int],
    uncollectable: list[int],
    times: list[int],
) -> Callable[[str, dict[str, int]], None]:
    floats: Any = recording.journal.floats
    clock, began = time.monotonic_ns, 0

    def watch(phase: str, info: dict[str, int]) -> None:
        nonlocal began
        try:
            if phase == "start":
                began = clock()
                return
            if not began or recording.is_retired:
                return
            took_ns = clock() - began
            generation = info["generation"]
            floats[collections[generation] + 1] += 1
            floats[times[generation] + 1] += took_ns / 1e9
            if info["collected"]:
                floats[collected[generation] + 1] += info["collected"]
            if info["uncollectable"]:
                floats[uncollectable[generation] + 1] += info["uncollectable"]
        except Exception as error:  # noqa: BLE001 - the interpreter would print it
            internal_error(error)

    return watch


def _places(cells: Cells, metric: Metric) -> list[int]:
    """The cell of each generation's counter; 0 where none is left."""
    return [
        cells.shared(
            content_of(
                "counter", metric.name, metric.unit, ((names.GC_GENERATION, str(generation)),)
            )
        )
        for generation in range(_GENERATIONS)
    ]
