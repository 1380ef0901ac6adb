"""Periodic evaluation of a run's findings while the run is still running.

Each evaluation reads the run folder and covers the whole run so far.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from otel_mlperf.analysis.findings.finding_sources import judge_run
from otel_mlperf.errors import OtelMlperfError

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.findings.finding import Finding
    from otel_mlperf.store.run_folders import RunFolder

_EVERY_NS: Final = 15 * 10**9
_REST: Final = 20
"""Minimum pause as a multiple of the evaluation time: limits the CPU use to 1/20 of a core."""


class FindingWatch:
    """Repeated evaluation of one run's findings, with pauses that limit its CPU use."""

    def __init__(self, run: RunFolder, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._run, self._clock = run, clock
        self._next_ns: int | None = None
        self._found: list[Finding] = []

    def look(self) -> list[Finding]:
        """Return the findings, worst first; during a pause, the findings of the last evaluation."""
        begin_ns = self._clock()
        if self._next_ns is not None and begin_ns < self._next_ns:
            return self._found
        # The run may have no process yet, or a part may be incomplete at the moment.
        with suppress(OtelMlperfError):
            self._found = judge_run(self._run).findings
        end_ns = self._clock()
        self._next_ns = end_ns + max(_EVERY_NS, _REST * (end_ns - begin_ns))
        return self._found
