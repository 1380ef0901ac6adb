"""Periodic evaluation of the findings of a run that is still going on.

Each evaluation covers the whole run so far, as at its end, from the data in the run folder.
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
"""So many times as long as it took nobody judges again: at most a twentieth of a core."""


class FindingWatch:
    """Judges one run again and again, as seldom as it is dear."""

    def __init__(self, run: RunFolder, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._run, self._clock = run, clock
        self._next_ns: int | None = None
        self._found: list[Finding] = []

    def look(self) -> list[Finding]:
        """The findings, worst first, of now or of a short while ago."""
        begin_ns = self._clock()
        if self._next_ns is not None and begin_ns < self._next_ns:
            return self._found
        # A run without a process yet, or a part that is just being written.
        with suppress(OtelMlperfError):
            self._found = judge_run(self._run).findings
        end_ns = self._clock()
        self._next_ns = end_ns + max(_EVERY_NS, _REST * (end_ns - begin_ns))
        return self._found
