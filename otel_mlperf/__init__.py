"""OpenTelemetry profiling for ML training: spans, metrics and a run folder.

::

    import otel_mlperf as om

    with om.start("digits", params={"lr": lr}) as run:
        for epoch in om.epochs(10):
            for x, y in om.steps(train_loader):
                with om.span("forward"):
                    loss = criterion(model(x), y)
                ...
                om.log(loss=loss)
        run.result(accuracy=accuracy)

The training process only writes to shared memory; the agent, a background process, does the rest.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from otel_mlperf.names import VERSION as _VERSION
from otel_mlperf.upper_parts import register_upper as _register_upper

if _TYPE_CHECKING:
    from otel_mlperf.analysis.run.stored_run import RunTable, StoredRun, read_run
    from otel_mlperf.journal.bulletin import RunWarning
    from otel_mlperf.public import *
    from otel_mlperf.recorder.api.block import Block as Span
    from otel_mlperf.recorder.lifecycle.section_stats import SectionStats, Stats
    from otel_mlperf.run_files.growth_file import GrowthRow, MemoryGrowth

__all__ = [
    "Config",
    "ConfigError",
    "GrowthRow",
    "JournalError",
    "Memory",
    "MemoryGrowth",
    "MemoryPoint",
    "OtelMlperfError",
    "Readings",
    "Run",
    "RunActive",
    "RunTable",
    "RunWarning",
    "SectionStats",
    "Span",
    "Stats",
    "StoredRun",
    "counter",
    "cuda_memory",
    "epoch",
    "epochs",
    "find_batch_size",
    "gauge",
    "histogram",
    "integrate",
    "log",
    "log_ids",
    "mark_step",
    "memory",
    "memory_growth",
    "memory_point",
    "memory_snapshot",
    "model_work",
    "on_phase",
    "on_step_begin",
    "on_step_end",
    "on_warning",
    "phase",
    "read_run",
    "readings",
    "remove_callback",
    "request",
    "span",
    "start",
    "step",
    "steps",
    "stop",
    "timed",
    "torch_profile",
    "trace_handler",
    "watch_files",
]
__version__ = _VERSION


def __dir__() -> list[str]:
    """Return the public names; submodules are not public."""
    return sorted(__all__)


_register_upper(
    join="otel_mlperf.integrations.joined_provider",
    no_summary="otel_mlperf.analysis.summary.summary_shapes",
    read_hot="otel_mlperf.report.hot_table",
    render_run="otel_mlperf.report.notebook",
    run_in_thread="otel_mlperf.agent.lifecycle.agent_process",
    watch_runs="otel_mlperf.public",
)

_LATER = {
    "GrowthRow": "otel_mlperf.run_files.growth_file",
    "MemoryGrowth": "otel_mlperf.run_files.growth_file",
    "RunTable": "otel_mlperf.analysis.run.stored_run",
    "RunWarning": "otel_mlperf.journal.bulletin",
    "SectionStats": "otel_mlperf.recorder.lifecycle.section_stats",
    "Stats": "otel_mlperf.recorder.lifecycle.section_stats",
    "StoredRun": "otel_mlperf.analysis.run.stored_run",
    "read_run": "otel_mlperf.analysis.run.stored_run",
}
"""Modules of public names that are imported on first access, since training does not need them."""


def __getattr__(name: str) -> object:
    """Import a public name at its first access: a command that reads runs needs none of them."""
    import importlib

    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    public = vars(importlib.import_module(f"{__name__}.public"))
    globals().update((known, public[known]) for known in __all__ if known not in _LATER)
    return public[name]
