"""Pauses and counts of Python's garbage collections.

The interpreter calls this module before and after each collection, in the thread that triggered
it. The calls cost 1.4 µs, half of it in the interpreter. They create no objects that the collector
tracks and allocate no cells. A forked child counts nothing.

A collection of at least a millisecond is a *pause*: it is counted and recorded as a section. A
pause may start at any moment, even while a section is being opened or closed. Its row therefore
contains only times and track, and the agent determines the enclosing section. The row costs 3 µs.
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
"""Minimum duration of a collection that is recorded as a section, in ns."""
_GENERATIONS = 3
_PAUSE_FLAGS = int(Kind.SECTION | Flag.PAUSE)
_METRICS = (names.GC_COLLECTIONS, names.GC_COLLECTED, names.GC_UNCOLLECTABLE, names.GC_TIME)


def watch_garbage(
    recording: Recording, cells: Cells, clock: Callable[[], int] = time.monotonic_ns
) -> None:
    """Count garbage collections until the recording is retired; do nothing if no cells are free."""
    places = [_places(cells, metric) for metric in _METRICS]
    if not all(map(all, places)):
        return
    # A signal handler of the program may raise during the callback: raise its exception afterwards,
    # because the interpreter would drop it.
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
            # Compare the pid, too: a collection may run in a forked child before its recording is
            # retired, and the journal belongs to the parent process.
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
    """Return the first words of a counter's cells, by generation; 0 if no cell is free."""
    return [
        cells.shared(
            content_of(
                "counter", metric.name, metric.unit, ((names.GC_GENERATION, str(generation)),)
            )
        )
        for generation in range(_GENERATIONS)
    ]
