"""Declarations of the tables of a run folder, derived from one row class per table.

Writers and readers share these declarations, and neither imports the other's library (pyarrow,
DuckDB).
"""

from typing import Final

from otel_mlperf.tables import run_tables, window_tables
from otel_mlperf.tables.row import Column, Row, columns_of

ROWS: Final[dict[str, type[Row]]] = {
    "processes": run_tables.ProcessRow,
    "steps": run_tables.StepRow,
    "sections": run_tables.SectionRow,
    "resources": run_tables.ResourceRow,
    "durations": run_tables.DurationRow,
    "gpu_steps": run_tables.GpuStepRow,
    "spans": run_tables.SpanRow,
    "values": run_tables.ValueRow,
    "marks": run_tables.MarkRow,
    "readings": run_tables.ReadingRow,
    "instruments": run_tables.InstrumentRow,
    "warnings": run_tables.WarningRow,
    "windows": window_tables.WindowRow,
    "completeness": window_tables.CompletenessRow,
    "totals": window_tables.TotalRow,
    "launches": window_tables.LaunchRow,
    "streams": window_tables.StreamRow,
    "copies": window_tables.CopyRow,
    "gaps": window_tables.GapRow,
    "allocator": window_tables.AllocatorRow,
}
NAMES: Final = {row: table for table, row in ROWS.items()}
TABLES: Final[dict[str, tuple[Column, ...]]] = {
    table: columns_of(row) for table, row in ROWS.items()
}
