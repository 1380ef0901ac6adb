"""Steps of a run that a profiler has seen."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from otel_mlperf.recorder.lifecycle.recorder import Recorder
    from otel_mlperf.recorder.sections.parents import OpenStep

_MOST_STEPS: Final = 4096
"""Maximum number of steps listed for one window."""


class SeenSteps:
    """The steps of one run that end while a profiler records, or during which it recorded."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = weakref.ref(recorder)
        self._is_recording = False
        self._seen: dict[int, tuple[str, int, int]] = {}
        self._still_open: set[int] = set()
        # In front, so that a callback that ends a window with a step finds it among those seen.
        recorder.stepping.after_step.insert(0, self._ended)

    def begin(self) -> None:
        """Start noting steps: a profiler records from now on."""
        recorder = self._recorder()
        if recorder is not None:
            self._seen, self._still_open, self._is_recording = {}, set(), True
            recorder.stepping.note_profiler(self, is_on=True)

    def end(self) -> None:
        """Stop noting steps; steps that are still open were profiled too."""
        recorder = self._recorder()
        if recorder is None or not self._is_recording:
            return
        opened = recorder.stepping.open
        for step in list(opened.values()):
            self._note(step)
        self._still_open = set(opened)
        if not opened:
            recorder.stepping.note_profiler(self, is_on=False)
        self._is_recording = False  # must be last: an interrupted call repeats all of it

    def take(self) -> dict[int, tuple[str, int, int]]:
        """Return phase, n and number by span id, in the order in which they ended; only once."""
        seen, self._seen = self._seen, {}
        return seen

    def _ended(self, step: OpenStep) -> None:
        if self._is_recording:
            self._note(step)
        elif self._still_open:
            recorder = self._recorder()
            assert recorder is not None
            self._still_open &= recorder.stepping.open.keys()
            if not self._still_open:
                recorder.stepping.note_profiler(self, is_on=False)

    def _note(self, step: OpenStep) -> None:
        if len(self._seen) < _MOST_STEPS:
            self._seen[step.section.sid] = (step.phase, step.n, step.number)


def seen_steps_of(recorder: Recorder) -> SeenSteps:
    """Return the seen steps of a run."""
    profiled: SeenSteps | None = recorder.kept.get(SeenSteps)
    if profiled is None:
        profiled = recorder.kept[SeenSteps] = SeenSteps(recorder)
    return profiled
