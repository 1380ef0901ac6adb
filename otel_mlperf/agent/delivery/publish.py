"""Publication of readings, active warnings and section sums to the training processes.

The file of readings and warnings is stored next to the journals. It is written after each read of a
sensor source, and at least every five seconds. Replays do not write it, because it contains only
current values.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.agent.derivation.rule_evaluator import RuleEvaluator
from otel_mlperf.agent.model.agent_state import JOURNAL
from otel_mlperf.findings.finding_table import RULES
from otel_mlperf.journal.bulletin import Group, Reading, drop_readings, write_readings
from otel_mlperf.journal.section_sums import write_sums

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from otel_mlperf.agent.model.agent_state import AgentState
    from otel_mlperf.agent.model.events import Read, WarningHeld
    from otel_mlperf.findings.finding_row import Rule

_log = logging.getLogger("otel_mlperf.agent")
_MAX_INTERVAL_S: Final = 5.0
_REPORTED_AS_RATES: Final = {m.name for m in (names.DISK_IO, names.DISK_IO_TIME, names.NETWORK_IO)}
"""Totals that ``om.readings()`` reports as rates."""
_OWN_SOURCES: Final = ("", JOURNAL)
"""Values of ``MetricSeries.source`` of series that no sensor reads: the agent derives them from
rows, or reads them from journals."""


class Publisher:
    """Publisher of the file with readings and active warnings for the processes of one folder."""

    def __init__(
        self,
        folder: Path,
        rules: Sequence[Rule] = RULES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._clock = str(folder), clock
        self._evaluator = RuleEvaluator(rules)
        self._wanted = {
            part.metric.name for rule in rules for part in (rule.measured, rule.per) if part
        }
        self._groups: dict[str, Group] = {}
        self._written_s: float | None = None

    def publish(self, reads: Sequence[Read], state: AgentState) -> list[WarningHeld]:
        """Store new ``reads``; if due, evaluate the rules and write the file.

        Returns an event for each warning with a true condition; [] if nothing was due or no journal
        is being read.
        """
        now_s = self._clock()
        for read in reads:
            self._groups[read.source] = self._group(read, int(now_s * 1e9))
        # Evaluate also without new readings, because a condition becomes a warning only after some
        # time.
        due = self._written_s is None or now_s - self._written_s >= _MAX_INTERVAL_S
        if not (reads or due) or not state.journals:
            return []
        self._written_s = now_s
        read_now = [reading for group in self._groups.values() for reading in group.readings]
        readings = [*read_now, *derived_readings(state, self._wanted)]
        warnings = self._evaluator.look(readings, now_s, time.time_ns())
        try:
            write_readings(self._folder, self._groups, warnings)
        except OSError as error:
            _log.info("publishing readings to the processes failed: %s", error)
        return self._evaluator.held

    def _group(self, read: Read, now_ns: int) -> Group:
        """Return a source's readings, with earlier totals from which processes compute rates."""
        readings = [Reading(r.journal, r.name, r.labels, r.value) for r in read.readings]
        last = self._groups.get(read.source)
        if last is None:
            return Group(now_ns, readings)
        before = [reading for reading in last.readings if reading.metric in _REPORTED_AS_RATES]
        return Group(now_ns, readings, last.monotonic_ns, before)

    def close(self) -> None:
        """Remove the file of readings and warnings."""
        drop_readings(self._folder)


def derived_readings(state: AgentState, wanted: set[str]) -> Iterator[Reading]:
    """Yield the values of the ``wanted`` metrics that no sensor reads, and the lost-items total."""
    for name, journal in state.journals.items():
        meta = journal.meta
        rank = state.ranks.get(journal.instance)
        if rank is None or meta.is_child or journal.left:
            continue
        for series in rank.series.values():
            if series.metric in wanted and series.source in _OWN_SOURCES:
                value = series.buckets.sum if series.buckets else series.value
                yield Reading(name, series.metric, series.labels, value)
    lost = sum(sum(account.lost.values()) for account in state.accounts.values())
    yield Reading("", names.ITEMS.name, {names.OUTCOME: "lost"}, lost)


class SumsPublisher:
    """Publisher of the section sums that the agent has computed so far.

    After each poll, the sums are written to files next to the journals of one folder. Each process
    adds later rows from its own ring, if the ring still contains them.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: dict[str, int] = {}
        """Slot up to which sums were written, by journal."""

    def publish(self, state: AgentState) -> None:
        """Write the sums of each journal that has new rows."""
        for name, journal in state.journals.items():
            path = self._folder / name
            if journal.left or self._written.get(name) == journal.next or not path.exists():
                continue
            self._written[name] = journal.next
            try:
                write_sums(str(path), journal.next, journal.holes, journal.sums)
            except OSError as error:
                _log.info("publishing section totals to a process failed: %s", error)
