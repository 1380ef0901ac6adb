"""What is there to say about a run, what is wrong with it included?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from otel_mlperf.analysis.findings.finding_sources import find_all
from otel_mlperf.analysis.findings.run_numbers import RunNumbers
from otel_mlperf.analysis.summary.summary import summarize
from otel_mlperf.store.table_reader import Store

if TYPE_CHECKING:
    from otel_mlperf.analysis.summary.summary_shapes import Summary
    from otel_mlperf.store.run_folders import RunFolder


def judge_run(run: RunFolder, rank: int | None = None) -> Summary:
    """The summary of a run folder with its findings; of one ``rank``, if it is given.

    Raises:
        NoSuchRun: no process of that rank is known.
        StoreError: a file of the run cannot be read.
    """
    summary = summarize(run, rank)
    return replace(summary, findings=find_all(RunNumbers(summary, Store(run.path, rank))))
