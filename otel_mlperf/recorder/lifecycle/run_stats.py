"""What does ``run.stats()`` answer: now, after the end, in a fork, and where nothing is recorded?

Nothing is read from the run folder and nobody is waited for.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names
from otel_mlperf.recorder.core import recording
from otel_mlperf.recorder.core.attribute_values import safe_name_text
from otel_mlperf.recorder.core.faults import internal_error, say_once
from otel_mlperf.recorder.instruments.marks import Mark
from otel_mlperf.recorder.lifecycle.section_stats import Stats
from otel_mlperf.recorder.lifecycle.stats_source import Known, copy_known
from otel_mlperf.recorder.lifecycle.stats_sums import read_told, work_out

if TYPE_CHECKING:
    from otel_mlperf.recorder.lifecycle.recorder import Recorder

NOTHING: Final = "nothing was recorded in this process"
_FAILED: Final = "it could not be worked out: the log says why"
_UNKNOWN: Final = "stats(since=%r): it is 'start', 'epoch', 'last' or a mark(); taken for 'start'"
_NOT_TOLD: Final = (
    "sections of which the agent has not told yet, or whose mark is older than 16 others"
)


class RunStats:
    """What is told of the sections of one run in this process, or in a forked child of it."""

    def __init__(
        self, name: str, recorder: Recorder | None, pid: int, at_end: Known | None
    ) -> None:
        """``pid`` is of the process that began the run; ``at_end`` is known of one that ended."""
        self._name, self._recorder, self._pid, self._at_end = name, recorder, pid, at_end

    def mark(self, name: Any) -> Mark:
        """A mark at this moment; where nothing is recorded, one after which nothing comes."""
        try:
            recorder = self._now()
            if recorder is not None and not recorder.is_retired:
                return _set_mark(recorder, name)
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)
        return Mark(None, 0, 0, time.monotonic_ns())

    def read(self, since: Any) -> Stats:
        """See ``Run.stats``."""
        try:
            recorder = self._now()
            if recorder is None:
                return Stats({}, run=self._name, missing=(NOTHING,))
            return self._read(recorder, since)
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)
            return Stats({}, run=self._name, missing=(_FAILED,))

    def _now(self) -> Recorder | None:
        """What records in this process; of a run that has ended, what did."""
        if self._pid == os.getpid():
            return self._recorder
        own = recording.unreplaced()  # a child is given no journal for being asked
        return None if own is None or own.is_retired else own

    def _read(self, recorder: Recorder, since: Any) -> Stats:
        marks, known = recorder.marks, self._at_end
        before = marks.asked
        if known is None or recorder is not self._recorder:
            now, before = marks.ask()
            known = copy_known(recorder, now.slot, now.time_ns)
        named = {"start": marks.start, "epoch": marks.epoch, "last": before}
        word = "mark" if isinstance(since, Mark) else since
        if isinstance(since, Mark):
            # Of a parent process: all that is recorded here came after it.
            mark = since if since.journal is recorder.journal else marks.start
        elif isinstance(since, str) and since in named:
            mark = named[since]
        else:
            say_once(_UNKNOWN, since)
            mark, word = marks.start, "start"
        return Stats(
            work_out(known, mark, lambda number: recorder.registry.about(number)[0]),
            run=self._name,
            since=word,
            elapsed_ns=max(0, known.now_ns - mark.time_ns),
            counted={
                name: total - mark.counted.get(name, 0.0) for name, total in known.counted.items()
            },
            missing=tuple(_missing(known, mark)),
        )


def _set_mark(recorder: Recorder, name: Any) -> Mark:
    registry, stepping = recorder.registry, recorder.stepping
    text = safe_name_text(name)
    entry = registry.entry(("mark", text), text, names.OTHER)
    step = recorder.parents.current_step(registry.phase)
    return recorder.marks.set_own(
        entry, step.number if step else stepping.next_number(registry.phase)
    )


def _missing(known: Known, mark: Mark) -> list[str]:
    missing = []
    if read_told(known, mark) is None:
        missing.append(_NOT_TOLD)
    if (dropped := known.dropped - mark.dropped) > 0:
        missing.append(f"{dropped:,} sections for which the journal had no room")
    return missing
