"""Pauses and counts of Python's garbage collections.

The interpreter calls this module before and after each collection, in the thread in which it
started. This costs 1.4 µs, half of it the interpreter's own. The calls make no object that the
collector would examine, and allocate no cell: the cells exist before. A forked child counts
nothing.

A collection that lasts a millisecond or more is a *pause*: it is a section in addition to being
counted. It may start at any moment, even while a section is being entered or left. So its row
contains only time and track, and the agent finds the enclosing section. Such a row costs 3 µs: less
than a hundredth of the pause.
"""

from __future__ import annotations

import gc
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from otel_mlperf import names
from otel_mlperf.journal.layout import Flag, Kind
from otel_mlperf.recorder.core.faults import internal_error
from otel_mlperf.recorder.core.interrupts import raises_afterwards
from otel_mlperf.recorder.instruments.cells import content_of
from otel_mlperf.recorder.sections.section_context import CURRENT, aggregate_around

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.names import Metric
    from otel_mlperf.recorder.core.recording import Recording
    from otel_mlperf.recorder.instruments.cells import Cells

PAUSE_NS = 1_000_000
"""Minimum duration of a collection that is a section, not only counted."""
_GENERATIONS = 3
_PAUSE_FLAGS = int(Kind.SECTION | Flag.PAUSE)
_METRICS = (names.GC_COLLECTIONS, names.GC_COLLECTED, names.GC_UNCOLLECTABLE, names.GC_TIME)


def watch_garbage(
    recording: Recording, cells: Cells, clock: Callable[[], int] = time.monotonic_ns
) -> None:
    """Count collections from now on, until the recording is retired."""
    places = [_places(cells, metric) for metric in _METRICS]
    if not all(map(all, places)):
        return
    # What a signal handler raises in the meantime is the program's; here the interpreter would drop
    # it.
    watch = raises_afterwards(_watch(recording, clock, *places))
    gc.callbacks.append(watch)

    def end() -> None:
        with suppress(ValueError):  # the program has emptied the list
            gc.callbacks.remove(watch)

    recording.at_retire.append(end)


def _watch(
    recording: Recording,
    clock: Callable[[], int],
    collections: list[int],
    collected: list[int],
    uncollectable: list[int],
    times: list[int],
) -> Callable[[str, dict[str, int]], None]:
    floats: Any = recording.journal.floats
    pid, began = os.getpid(), 0

    def watch(phase: str, info: dict[str, int]) -> None:
        nonlocal began
        try:
            if phase == "start":
                began = clock()
                return
            # The journal is the parent's even before a forked child's recording is retired: other
            # libraries may cause a collection right after a fork.
            if not began or recording.is_retired or os.getpid() != pid:
                return
            ended = clock()
            took_ns, generation = ended - began, info["generation"]
            floats[collections[generation] + 1] += 1
            floats[times[generation] + 1] += took_ns / 1e9
            if info["collected"]:
                floats[collected[generation] + 1] += info["collected"]
            if info["uncollectable"]:
                floats[uncollectable[generation] + 1] += info["uncollectable"]
            if took_ns >= PAUSE_NS:
                _record_pause(recording, began, ended, generation)
        except Exception as error:  # noqa: BLE001 - the interpreter would print it
            internal_error(error)

    return watch


def _record_pause(recording: Recording, began: int, ended: int, generation: int) -> None:
    entry = recording.registry.entry(
        (names.SPAN_COLLECTION, generation),
        names.SPAN_COLLECTION,
        names.GARBAGE_COLLECTION,
        {names.GC_GENERATION: str(generation)},
    )
    track = recording.tracks.current()
    around = aggregate_around(CURRENT.get(), track)
    if around is not None:
        around.covered_ns += ended - began
    recording.journal.put(began, ended, recording.next_id(), 0, 0, track, entry, _PAUSE_FLAGS)


def _places(cells: Cells, metric: Metric) -> list[int]:
    """Return the cell of each generation's counter; 0 if none is left."""
    return [
        cells.shared(
            content_of(
                "counter", metric.name, metric.unit, ((names.GC_GENERATION, str(generation)),)
            )
        )
        for generation in range(_GENERATIONS)
    ]
