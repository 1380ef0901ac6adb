"""Puts the performance of ML training into OpenTelemetry: spans, metrics and a run folder.

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

The training process only writes to shared memory; an agent beside it does everything else.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from otel_mlperf.config import Config
from otel_mlperf.errors import ConfigError, JournalError, OtelMlperfError, RunActive
from otel_mlperf.integrations.switch import integrate
from otel_mlperf.pytorch.memory import out_of_memory as _out_of_memory  # noqa: F401 - looks at each run
from otel_mlperf.pytorch.memory.cuda_memory import cuda_memory
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
from otel_mlperf.recorder.api.instruments import counter, gauge, histogram
from otel_mlperf.recorder.api.log_ids import log_ids
from otel_mlperf.recorder.api.memory import Memory, memory
from otel_mlperf.recorder.api.readings import Readings, readings
from otel_mlperf.recorder.api.span import span
from otel_mlperf.recorder.api.start import start, stop
from otel_mlperf.recorder.api.step import log, mark_step, step
from otel_mlperf.recorder.api.steps import steps
from otel_mlperf.recorder.lifecycle.run import Run

if _TYPE_CHECKING:
    from otel_mlperf.journal.bulletin import RunWarning

__all__ = [
    "Config",
    "ConfigError",
    "JournalError",
    "Memory",
    "OtelMlperfError",
    "Readings",
    "Run",
    "RunActive",
    "RunWarning",
    "Span",
    "counter",
    "cuda_memory",
    "epoch",
    "epochs",
    "gauge",
    "histogram",
    "integrate",
    "log",
    "log_ids",
    "mark_step",
    "memory",
    "on_phase",
    "on_step_begin",
    "on_step_end",
    "on_warning",
    "phase",
    "readings",
    "remove_callback",
    "span",
    "start",
    "step",
    "steps",
    "stop",
    "torch_profile",
    "trace_handler",
]
__version__ = "0.1.0"


def __dir__() -> list[str]:
    """What is public; the modules below are not."""
    return sorted(__all__)


def __getattr__(name: str) -> object:
    """The type of a warning, whose module loads what only a run needs."""
    if name == "RunWarning":
        from otel_mlperf.journal.bulletin import RunWarning

        return RunWarning
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
