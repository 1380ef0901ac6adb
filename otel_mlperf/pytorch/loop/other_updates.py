"""Updates in threads and tasks other than the loop's, counted so that they can be reported."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from otel_mlperf import names
from otel_mlperf.recorder.core.faults import internal_error
from otel_mlperf.recorder.sections.section_context import CURRENT

if TYPE_CHECKING:
    from otel_mlperf.recorder.lifecycle.recorder import Recorder


class OtherUpdates:
    """Counts of optimizer steps by thread or task."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def count(self, key: int) -> None:
        """Add one; each key has one thread that adds to it."""
        self._counts[key] = self._counts.get(key, 0) + 1

    def count_outside(self, recorder: Recorder) -> None:
        """Add one if the open step is another task's, of asyncio or a greenlet."""
        if recorder.parents.step_around(CURRENT.get()) is not None:
            return
        tasks: Any = sys.modules.get("asyncio.tasks")
        is_running = tasks is not None and tasks.events._get_running_loop() is not None
        self.count(id(tasks.current_task()) if is_running else 0)

    def record(self, recorder: Recorder) -> None:
        """Write what was counted since the last call into the run; never raises."""
        counts, self._counts = self._counts, {}
        if not counts:
            return
        try:
            for metric, value in (
                (names.OTHER_UPDATES, sum(counts.values())),
                (names.OTHER_LOOPS, len(counts)),
            ):
                recorder.cells.set(metric.name, metric.unit, float(value))
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)
