"""Task and outcome of the derivation for one journal at one mark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_mlperf import names
from otel_mlperf.agent.derivation.metric_series import Meter
from otel_mlperf.agent.derivation.new_rows import NewRows
from otel_mlperf.otlp.span_limits import NO_LIMITS, SpanLimits

if TYPE_CHECKING:
    from otel_mlperf.agent.model.agent_state import RankState
    from otel_mlperf.agent.model.journal_state import JournalState
    from otel_mlperf.agent.model.kept_span import SampledSpan
    from otel_mlperf.agent.model.sampling import Policy
    from otel_mlperf.agent.model.table_rows import TableRows
    from otel_mlperf.tables.run_tables import StepRow, ValueRow


class MarkOutcome:
    """Outcome of the span items of one journal at one mark."""

    def __init__(self, created: int = 0, failed: int = 0, damaged: int = 0) -> None:
        self.created, self.failed, self.damaged = created, failed, damaged
        self.unselected = self.rolled_up = 0
        self.kept: list[SampledSpan] = []
        self.steps: list[StepRow] = []
        """Rows that were added to table ``steps``; ``values`` has those of table ``values``."""
        self.values: list[ValueRow] = []


class MarkTask:
    """New rows of one journal, and the targets of what is derived from them."""

    def __init__(
        self,
        journal: JournalState,
        rank: RankState,
        policy: Policy,
        tables: TableRows,
        *,
        explicit: bool = False,
        limits: SpanLimits = NO_LIMITS,
    ) -> None:
        self.journal, self.rank, self.policy, self.tables = journal, rank, policy, tables
        self.meter = Meter(rank, explicit=explicit)
        self.batch = NewRows(journal, limits)
        self.budget = policy.spans_of_rank(journal.meta.world_size)
        self.outcome = MarkOutcome(self.batch.created, damaged=self.batch.damaged)

    def entry(self, number: int) -> list[Any]:
        """Return kind, name, category, phase and constant attributes of a section's name."""
        return self.journal.section(number)

    def labels(self, number: int, phase: str | None = None) -> dict[str, str]:
        """Return labels of a section's series; ``phase`` replaces its own."""
        _, name, category, own, _ = self.entry(number)
        return {
            names.SECTION_NAME: name,
            names.SECTION_CATEGORY: category,
            names.ML_PHASE: own if phase is None else phase,
        }

    def self_time(self, labels: dict[str, str], self_ns: int) -> None:
        """Add to the self time of a section."""
        self.meter.add(names.SECTION_SELF_TIME, labels, self_ns / 1e9)
