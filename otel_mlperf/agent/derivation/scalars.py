"""Points of tracker curves, from steps, logged values, readings, findings and outcomes.

There is one point for each row of the run's tables, so that trackers show the same values. A point
outside steps gets the number of the last step that had ended by then. Points wait in the agent's
state until the next batch.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from otel_mlperf import names
from otel_mlperf.agent.model.scalar_item import ScalarItem
from otel_mlperf.findings.finding_table import RULES

if TYPE_CHECKING:
    from otel_mlperf.agent.derivation.journal_rows import DerivedRows
    from otel_mlperf.agent.model.agent_state import AgentState
    from otel_mlperf.agent.model.events import Mark, SensorReading, WarningHeld
    from otel_mlperf.agent.model.journal_state import JournalState
    from otel_mlperf.journal.meta import JournalMeta

STEP_DURATION_S: Final = "step_duration_s"
_RULES: Final = {rule.id: rule for rule in RULES}
_EVERY_NS: Final = 5 * 10**9
"""Time between two batches. Trackers refresh about as often, and each batch costs an fsync."""
_BATCH_SIZE: Final = 2_000
"""Number of waiting points that triggers the next batch."""
OUTCOMES: Final = ("running", "finished", "interrupted", "killed", "failed")
"""Outcomes of a process, the worst last. "failed" is worse than "killed": a launcher kills the
other processes of a run after one has failed."""
_NODE: Final = -1
_ON_AXIS: Final = (names.TRAIN, names.PREDICT)
"""Phases whose step numbers are the x-axis, because other phases count their own steps."""


class Scalars:
    """Collector of a node's tracker points, which wait in the agent's state for the next batch."""

    def __init__(self, state: AgentState) -> None:
        self._state = state
        self._ended: dict[int, list[tuple[int, int]]] = {}

    def read(self, meta: JournalMeta | None, reading: SensorReading, time_ns: int) -> None:
        """Add a reading of the rank of ``meta``, or of the node if ``meta`` is None."""
        self._put("reading", reading.name, meta, time_ns, reading.value, labels=reading.labels)

    def start_finding(self, meta: JournalMeta | None, held: WarningHeld) -> None:
        """Add a new finding of the rank of ``meta``, or of the node if ``meta`` is None."""
        rule = _RULES[held.id]
        text = f"**{rule.severity}**: {rule.format_summary(held.value, held.labels)}. {rule.action}"
        self._put("finding", held.id, meta, held.end_unix_ns, held.value,
                  labels=held.labels, text=text)  # fmt: skip

    def add_rows(self, rows: DerivedRows, meta: JournalMeta) -> None:
        """Add the steps and logged values among the derived rows of one journal."""
        for step in rows.steps.whole:
            root, end_ns, duration_s = step.root, step.end + meta.shift_ns, step.duration_ns / 1e9
            place = {"phase": root.phase, "number": root.number}
            self._put("step", STEP_DURATION_S, meta, end_ns, duration_s, **place)
            if root.phase in _ON_AXIS:
                for rank in (meta.rank, _NODE):
                    self._ended.setdefault(rank, []).append((end_ns, root.number))
        for row in rows.values:
            place = {"phase": row.phase, "number": row.number}
            self._put("value", row.name, meta, row.time_ns, row.value, **place)

    def end(self, journal: JournalState) -> None:
        """Add the numeric results of a process that has ended, then its outcome."""
        meta = journal.meta
        time_ns = (journal.ended_ns or journal.alive_ns) + meta.shift_ns
        for name, value in journal.result.items():
            if isinstance(value, int | float):
                self._put("result", name, meta, time_ns, float(value))
        outcome = journal.outcome
        self._put("outcome", "outcome", meta, time_ns, OUTCOMES.index(outcome), text=outcome)

    def take_due(self, mark: Mark) -> list[ScalarItem]:
        """Remove and return the points of the next batch if due, else []. Call at each mark."""
        state = self._state
        self._place()
        waited = mark.unix_ns - state.scalars_ns
        if not (mark.last or waited >= _EVERY_NS or len(state.scalars) >= _BATCH_SIZE):
            return []
        state.scalars_ns = mark.unix_ns
        due, state.scalars = state.scalars, []
        return due

    def _put(
        self,
        kind: Any,
        name: str,
        meta: JournalMeta | None,
        time_ns: int,
        value: float,
        **more: Any,
    ) -> None:
        owner = {"rank": meta.rank, "restart": meta.restart} if meta else {"rank": None}
        scalar = ScalarItem(kind=kind, name=name, time_ns=time_ns, value=value, **owner, **more)
        self._state.scalars.append(scalar)

    def _place(self) -> None:
        state, ended = self._state, self._ended
        for steps in ended.values():
            steps.sort()
        for i, scalar in enumerate(state.scalars):
            if scalar.number is None:
                rank = _NODE if scalar.rank is None else scalar.rank
                steps = ended.get(rank, [])
                at = bisect_right(steps, scalar.time_ns, key=lambda step: step[0])
                number = steps[at - 1][1] if at else state.last_steps.get(rank, 0)
                state.scalars[i] = replace(scalar, number=number)
        state.last_steps.update((rank, steps[-1][1]) for rank, steps in ended.items())
        self._ended = {}
