"""Publication of section sums to the processes, as far as the agent has added them up.

The sums are written after each look. Processes find later rows in their own rings, as long as the
rings still contain them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from otel_mlperf.journal.section_sums import write_sums

if TYPE_CHECKING:
    from pathlib import Path

    from otel_mlperf.agent.model.agent_state import AgentState

_log = logging.getLogger("otel_mlperf.agent")


class SumsPublisher:
    """Publisher of the sums files next to the journals of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._told: dict[str, int] = {}
        """Slot up to which sums were written, by journal."""

    def tell(self, state: AgentState) -> None:
        """Write the sums of the journals that have new rows."""
        for name, journal in state.journals.items():
            path = self._folder / name
            if journal.left or self._told.get(name) == journal.next or not path.exists():
                continue
            self._told[name] = journal.next
            try:
                write_sums(str(path), journal.next, journal.holes, journal.sums)
            except OSError as error:
                _log.info("telling a process what its sections took: %s", error)
