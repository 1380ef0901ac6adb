"""Decision whether to sample stacks, by the share of step time outside sections.

Sections show where a loop's time is spent. If they cover too little of it, sampled lines of the
program show it instead. The decision uses the sums that the agent publishes. The decision is made
one second after the first step and repeated at doubling intervals, some twenty times in a run of
days. If sections cover enough, the recorder has no thread in the training process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.journal.layout import START

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.recorder.lifecycle.recorder import Recorder

_FIRST_NS: Final = 1_000_000_000
_UNCOVERED: Final = 0.15
"""Share of step time outside sections above which stacks are sampled."""
_FEWEST: Final = 5
"""Minimum number of steps for the decision."""
_LAG_NS: Final = 2_000_000_000
"""Maximum delay of the agent's sums."""
_BETWEEN: Final = (names.STEP, names.PHASE, names.CHECKPOINT)
"""Categories of sections that follow each other in a loop and account for its time."""


class StackChoice:
    """Periodic decision, which calls ``watch`` once if stack samples are needed."""

    def __init__(self, recorder: Recorder, watch: Callable[[], None]) -> None:
        self._recorder, self._watch = recorder, watch
        self._begin_ns = self._due_ns = 0
        self._is_watched = False

    def look(self, now_ns: int) -> None:
        """Decide whether to sample stacks, if that is due; called repeatedly as steps start."""
        if not self._begin_ns:
            self._begin_ns, self._due_ns = now_ns, now_ns + _FIRST_NS
        if self._is_watched or now_ns < self._due_ns:
            return
        self._due_ns = 2 * now_ns - self._begin_ns
        if self._uncovered(now_ns - self._begin_ns) > _UNCOVERED:
            self._is_watched = True
            self._watch()

    def _uncovered(self, elapsed_ns: int) -> float:
        """Return the uncovered share of the steps or of the elapsed time, whichever is larger.

        The result is between 0.0 and 1.0, and 0.0 if fewer than five steps are known.
        """
        # Imported on demand: few runs need it, and each full garbage collection would traverse the
        # modules that it loads.
        from otel_mlperf.journal.section_sums import read_mark, read_sums

        published = read_sums(self._recorder.journal.path)
        sums = read_mark(published, START) if published is not None else None
        about = self._recorder.registry.about
        known = [
            (about(entry)[1], of)
            for entry, of in (sums.sections if sums is not None else {}).items()
            if about(entry)[1] in _BETWEEN and about(entry)[0] != names.TRAIN
        ]
        steps = [of for category, of in known if category == names.STEP]
        if sum(of.count for of in steps) < _FEWEST:
            return 0.0
        explained_ns = sum(of.total_ns for _, of in known)
        in_steps = sum(of.self_ns for of in steps) / sum(of.total_ns for of in steps)
        return max(in_steps, 1 - (explained_ns + _LAG_NS) / elapsed_ns)
