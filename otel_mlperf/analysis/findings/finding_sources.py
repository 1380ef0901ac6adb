"""Registry of finding sources: the package's own and plug-ins from entry points.

A distribution adds findings by an entry point of the group ``otel_mlperf.findings`` that names a
``FindingSource``. Findings that another finding explains are removed here.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from otel_mlperf.analysis.findings.blocked_loop import find_blocked_loop
from otel_mlperf.analysis.findings.cold_start import find_cold_start, find_worker_startup
from otel_mlperf.analysis.findings.collective_time import find_collectives
from otel_mlperf.analysis.findings.contention import find_contention
from otel_mlperf.analysis.findings.data_loading import find_data_loading
from otel_mlperf.analysis.findings.device_waits import find_device_allocations, find_transfers
from otel_mlperf.analysis.findings.ended_rules import find_ended_rules
from otel_mlperf.analysis.findings.gpu_busy import find_gpu_idle
from otel_mlperf.analysis.findings.live_warnings import with_warnings
from otel_mlperf.analysis.findings.loader_causes import find_loader_causes
from otel_mlperf.analysis.findings.memory_leaks import find_memory_growth
from otel_mlperf.analysis.findings.missing_records import find_losses, find_unseen_steps
from otel_mlperf.analysis.findings.periodic_stalls import find_periodic_stall
from otel_mlperf.analysis.findings.run_numbers import RunNumbers
from otel_mlperf.analysis.findings.run_time import (
    find_extra_sections,
    find_large_shares,
    find_late_requests,
    find_long_set_up,
    find_low_goodput,
)
from otel_mlperf.analysis.findings.sampled_lines import find_sampled_lines
from otel_mlperf.analysis.findings.small_operators import find_small_operators
from otel_mlperf.analysis.findings.step_drift import find_step_drift
from otel_mlperf.analysis.findings.step_gaps import find_between_steps
from otel_mlperf.analysis.findings.stragglers import find_stragglers
from otel_mlperf.analysis.findings.torch_settings import (
    find_anomaly_detection,
    find_dense_embeddings,
    find_double_precision,
    find_full_precision,
    find_recompilation,
    find_recomputed_activations,
)
from otel_mlperf.analysis.findings.uneven_batches import find_uneven_batches
from otel_mlperf.analysis.findings.uneven_sections import find_uneven_sections
from otel_mlperf.analysis.findings.uneven_shards import find_uneven_shards
from otel_mlperf.analysis.steps.step_shares import DATA_WAIT
from otel_mlperf.analysis.summary.summary import summarize
from otel_mlperf.findings.finding import Finding, worst_findings_first
from otel_mlperf.findings.finding_table import TABLE, row_of
from otel_mlperf.store.table_reader import Store

if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.metadata import EntryPoint

    from otel_mlperf.analysis.summary.summary_shapes import Summary
    from otel_mlperf.findings.finding_row import FindingRow
    from otel_mlperf.store.run_folders import RunFolder


_ANY: Final = "*"
_REASONS: Final[Mapping[tuple[str, str], frozenset[str]]] = {
    # Waits are periodic if one of several workers is slow, or if each pass starts slowly.
    ("periodic_stall", DATA_WAIT): frozenset({"slow_worker", "worker_startup", "cold_start"}),
    ("periodic_stall", "garbage collection"): frozenset({"garbage_collection"}),
    ("periodic_stall", "compile"): frozenset({"recompilation"}),
    # A thread that occasionally waits for a CPU is occasionally slower, in any section.
    ("uneven_section", _ANY): frozenset({"noisy_neighbour", "oversubscription", "uneven_batches"}),
}
"""Ids of the findings that explain another one, by id and section of the explained finding."""


def without_explained(findings: list[Finding]) -> list[Finding]:
    """Return the findings without those that another finding of the list explains."""
    found = {finding.id for finding in findings}
    return [
        finding
        for finding in findings
        if not (_reasons(finding.id, finding.where.section) | _reasons(finding.id, _ANY)) & found
    ]


def _reasons(id: str, section: str) -> frozenset[str]:
    return _REASONS.get((id, section), frozenset())


GROUP: Final = "otel_mlperf.findings"
Find = Callable[[RunNumbers], list[Finding]]
"""Function that returns the findings of one run, without side effects."""

OWN: Final[tuple[Find, ...]] = (
    find_unseen_steps,
    find_worker_startup,
    find_loader_causes,
    find_data_loading,
    find_cold_start,
    find_uneven_batches,
    find_transfers,
    find_gpu_idle,
    find_contention,
    find_sampled_lines,
    find_blocked_loop,
    find_recompilation,
    find_small_operators,
    find_anomaly_detection,
    find_full_precision,
    find_double_precision,
    find_dense_embeddings,
    find_recomputed_activations,
    find_device_allocations,
    find_uneven_shards,
    find_stragglers,
    find_collectives,
    find_step_drift,
    find_periodic_stall,
    find_uneven_sections,
    find_large_shares,
    find_extra_sections,
    find_between_steps,
    find_memory_growth,
    find_low_goodput,
    find_long_set_up,
    find_late_requests,
    find_losses,
    find_ended_rules,
)


class FindingSource(NamedTuple):
    """A plug-in's source of findings: the object that its entry point names."""

    find: Find
    rows: tuple[FindingRow, ...] = ()
    """Rows of the findings table; rows with an alert are also written to the alert rules."""


def judge_run(
    run: RunFolder,
    rank: int | None = None,
    store: Store | None = None,
    phase: str | None = None,
) -> Summary:
    """Return the summary of a run with its findings.

    ``rank`` None means all ranks, ``phase`` None the main phase. ``store`` contains the tables of
    ``rank``, if already opened.

    Raises:
        NoSuchRun: no process of rank ``rank`` is known.
        NoSuchPhase: the run has no steps of phase ``phase``, or no requests if it is ``request``.
        StoreError: a file of the run cannot be read.
    """
    # One store for summary and findings, because opening it lists all parts and opens a connection.
    store = store or Store(run.path, rank)
    summary = summarize(run, rank, store, phase)
    return replace(summary, findings=find_all(RunNumbers(summary, store)))


def find_all(numbers: RunNumbers) -> list[Finding]:
    """Return the findings of all sources and of live warnings, worst first.

    If a source raises an exception, only the findings of that source are missing, and a finding
    ``finding_failed`` reports the error.
    """
    findings: list[Finding] = []
    # Bound as a default argument: a lambda resolves free names when it is called.
    for find in OWN:
        findings += _judged(find.__name__, lambda find=find: find(numbers))  # type: ignore[misc]
    for entry in _entry_points():
        findings += _judged(entry.name, lambda entry=entry: _source(entry).find(numbers))  # type: ignore[misc]
    findings = with_warnings(without_explained(findings), numbers)
    return worst_findings_first(findings)


def all_rows() -> tuple[FindingRow, ...]:
    """Return the findings table, extended by the rows of every installed plug-in.

    Raises:
        Exception: a plug-in cannot be loaded. It is not skipped, because its alerts would then be
            silently missing.
    """
    return (*TABLE, *(row for entry in _entry_points() for row in _source(entry).rows))


def _entry_points() -> list[EntryPoint]:
    return _installed(tuple(sys.path))


@lru_cache(maxsize=1)
def _installed(_path: tuple[str, ...]) -> list[EntryPoint]:
    """Return the entry points of ``GROUP``, sorted by name.

    Cached for one import path (``_path``), because importlib reads the metadata of every installed
    package, which costs as much as ten queries.
    """
    return sorted(importlib.metadata.entry_points(group=GROUP), key=lambda entry: entry.name)


def _source(entry: EntryPoint) -> FindingSource:
    # Imports third-party code: only where findings are requested, never in the agent or the
    # training process.
    source = entry.load()
    if not isinstance(source, FindingSource):
        raise TypeError(
            f"loading finding source {entry.value}: the entry point names {source!r}, not a "
            "FindingSource"
        )
    return source


def _judged(name: str, judge: Callable[[], list[Finding]]) -> list[Finding]:
    try:
        return list(judge())
    except Exception as error:  # noqa: BLE001 - it may be third-party code
        row = row_of("finding_failed")
        message = f"{type(error).__name__}: {error}"
        summary = row.summary.format(name=name, error=message)
        return [Finding(id=row.id, severity=row.severity, summary=summary, action=row.action)]
