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

from otel_mlperf.errors import ConfigError, JournalError, OtelMlperfError, RunActive
from otel_mlperf.integrations import torch_watches as _torch_watches  # noqa: F401 - looks at each run
from otel_mlperf.integrations.switch import integrate
from otel_mlperf.names import VERSION as _VERSION
from otel_mlperf.pytorch.gpu_time import stamp_switch as _gpu_time  # noqa: F401 - looks at each run
from otel_mlperf.pytorch.loop import collective_count as _collectives  # noqa: F401 - looks at each run
from otel_mlperf.pytorch.memory import mps_memory as _mps_memory  # noqa: F401 - looks at each run
from otel_mlperf.pytorch.memory.allocator_snapshot import memory_snapshot
from otel_mlperf.pytorch.memory.cuda_memory import cuda_memory
from otel_mlperf.pytorch.operations.batch_size_search import find_batch_size
from otel_mlperf.pytorch.operations.model_work import model_work
from otel_mlperf.pytorch.windows.profile_call import torch_profile
from otel_mlperf.pytorch.windows.trace_handler import trace_handler
from otel_mlperf.recorder.api.block import Block as Span
from otel_mlperf.recorder.api.callbacks import (
    on_phase,
    on_step_begin,
    on_step_end,
    on_warning,
    remove_callback,
)
from otel_mlperf.recorder.api.epochs import epoch, epochs, phase
from otel_mlperf.recorder.api.file_watch import watch_files
from otel_mlperf.recorder.api.instruments import counter, gauge, histogram
from otel_mlperf.recorder.api.log_ids import log_ids
from otel_mlperf.recorder.api.memory import Memory, memory
from otel_mlperf.recorder.api.memory_growth import MemoryPoint, memory_growth, memory_point
from otel_mlperf.recorder.api.readings import Readings, readings
from otel_mlperf.recorder.api.request import request
from otel_mlperf.recorder.api.span import span
from otel_mlperf.recorder.api.start import start, stop
from otel_mlperf.recorder.api.step import log, mark_step, step
from otel_mlperf.recorder.api.steps import steps
from otel_mlperf.recorder.api.timed import timed
from otel_mlperf.recorder.lifecycle.run import Run
from otel_mlperf.settings.config import Config
from otel_mlperf.upper_parts import register_upper as _register_upper

if _TYPE_CHECKING:
    from otel_mlperf.analysis.run.stored_run import RunTable, StoredRun, read_run
    from otel_mlperf.journal.bulletin import RunWarning
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
    if name in _LATER:
        import importlib

        return getattr(importlib.import_module(_LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
