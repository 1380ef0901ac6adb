"""Public names of the package, and the modules that watch each run from its start.

``otel_mlperf`` imports this module at the first access to a public name. Commands and the agent,
which import only parts of the package, do not load it.
"""

from otel_mlperf.errors import (
    ConfigError as ConfigError,
)
from otel_mlperf.errors import (
    JournalError as JournalError,
)
from otel_mlperf.errors import (
    OtelMlperfError as OtelMlperfError,
)
from otel_mlperf.errors import (
    RunActive as RunActive,
)
from otel_mlperf.integrations import torch_watches  # noqa: F401 - watches each run
from otel_mlperf.integrations.switch import integrate as integrate
from otel_mlperf.pytorch.gpu_time import stamp_switch  # noqa: F401 - watches each run
from otel_mlperf.pytorch.loop import collective_count  # noqa: F401 - watches each run
from otel_mlperf.pytorch.memory import mps_memory  # noqa: F401 - watches each run
from otel_mlperf.pytorch.memory.allocator_snapshot import memory_snapshot as memory_snapshot
from otel_mlperf.pytorch.memory.cuda_memory import cuda_memory as cuda_memory
from otel_mlperf.pytorch.operations.batch_size_search import find_batch_size as find_batch_size
from otel_mlperf.pytorch.operations.model_work import model_work as model_work
from otel_mlperf.pytorch.windows.profile_call import torch_profile as torch_profile
from otel_mlperf.pytorch.windows.trace_handler import trace_handler as trace_handler
from otel_mlperf.recorder.api.block import Block as Span  # noqa: F401 - public
from otel_mlperf.recorder.api.callbacks import (
    on_phase as on_phase,
)
from otel_mlperf.recorder.api.callbacks import (
    on_step_begin as on_step_begin,
)
from otel_mlperf.recorder.api.callbacks import (
    on_step_end as on_step_end,
)
from otel_mlperf.recorder.api.callbacks import (
    on_warning as on_warning,
)
from otel_mlperf.recorder.api.callbacks import (
    remove_callback as remove_callback,
)
from otel_mlperf.recorder.api.epochs import epoch as epoch
from otel_mlperf.recorder.api.epochs import epochs as epochs
from otel_mlperf.recorder.api.epochs import phase as phase
from otel_mlperf.recorder.api.file_watch import watch_files as watch_files
from otel_mlperf.recorder.api.instruments import (
    counter as counter,
)
from otel_mlperf.recorder.api.instruments import (
    gauge as gauge,
)
from otel_mlperf.recorder.api.instruments import (
    histogram as histogram,
)
from otel_mlperf.recorder.api.log_ids import log_ids as log_ids
from otel_mlperf.recorder.api.memory import Memory as Memory
from otel_mlperf.recorder.api.memory import memory as memory
from otel_mlperf.recorder.api.memory_growth import (
    MemoryPoint as MemoryPoint,
)
from otel_mlperf.recorder.api.memory_growth import (
    memory_growth as memory_growth,
)
from otel_mlperf.recorder.api.memory_growth import (
    memory_point as memory_point,
)
from otel_mlperf.recorder.api.readings import Readings as Readings
from otel_mlperf.recorder.api.readings import readings as readings
from otel_mlperf.recorder.api.request import request as request
from otel_mlperf.recorder.api.span import span as span
from otel_mlperf.recorder.api.start import start as start
from otel_mlperf.recorder.api.start import stop as stop
from otel_mlperf.recorder.api.step import log as log
from otel_mlperf.recorder.api.step import mark_step as mark_step
from otel_mlperf.recorder.api.step import step as step
from otel_mlperf.recorder.api.steps import steps as steps
from otel_mlperf.recorder.api.timed import timed as timed
from otel_mlperf.recorder.lifecycle.run import Run as Run
from otel_mlperf.settings.config import Config as Config


def watch_runs() -> None:
    """Do nothing: the import of this module has registered the functions that watch each run."""
