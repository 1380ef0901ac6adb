"""What does a finding get to see of a run?"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from otel_mlperf.analysis.summary.summary_shapes import Summary
    from otel_mlperf.store.table_reader import Store


class RunNumbers(NamedTuple):
    """The numbers of a run, finished or not."""

    summary: Summary
    """Exact for the whole run; its ``findings`` are empty yet."""
    store: Store
    """The run's tables, for what the summary does not say; of the rank that was asked for."""
