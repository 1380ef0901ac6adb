"""Data types of a run's summary, as ``--json`` prints them.

Times are nanoseconds, and means over the ranks of a multi-rank run, unless a field declares
otherwise.
"""

from __future__ import annotations

from typing import Any, get_origin

import msgspec

from otel_mlperf.analysis.run.given_number import JsonNumber  # noqa: TC001 - msgspec reads it
from otel_mlperf.analysis.run.run_processes import Failure  # noqa: TC001 - msgspec reads it
from otel_mlperf.analysis.steps.step_shapes import (  # noqa: TC001 - msgspec reads them
    AggregateTotal,
    Slowest,
    StepFigures,
    WarmUp,
)
from otel_mlperf.analysis.summary.call_shapes import (  # noqa: TC001 - msgspec reads them
    CallFigures,
    SectionUse,
)
from otel_mlperf.analysis.summary.epoch_figures import EpochFigures  # noqa: TC001 - msgspec reads it
from otel_mlperf.analysis.summary.goodput_shapes import Ledger  # noqa: TC001 - msgspec reads it
from otel_mlperf.analysis.summary.gpu_use import StepsOnGpu  # noqa: TC001 - msgspec reads it
from otel_mlperf.analysis.summary.loader_shapes import LoaderUse  # noqa: TC001 - msgspec reads it
from otel_mlperf.analysis.summary.marked_points import MarkedPoint  # noqa: TC001 - msgspec reads it
from otel_mlperf.analysis.summary.progress import Progress  # noqa: TC001 - msgspec reads it
from otel_mlperf.analysis.summary.work_figures import WorkFigures  # noqa: TC001 - msgspec reads it
from otel_mlperf.findings.finding import Finding  # noqa: TC001 - msgspec reads it
from otel_mlperf.store.window_facts import UnknownRows  # noqa: TC001 - msgspec reads it


class OutsideShare(msgspec.Struct, frozen=True, kw_only=True):
    """A share of the time outside steps."""

    name: str
    sum_ns: float
    count: int | None = None
    """Number of calls on one rank; None for the remainder."""


class CheckpointTotal(msgspec.Struct, frozen=True, kw_only=True):
    """Sum of the writes, or reads, of checkpoints or files of known size, on all ranks."""

    direction: str
    """``write`` or ``read``."""
    bytes: int
    time_ns: float
    """Sum of the durations of all calls on all ranks."""
    bytes_per_s: float
    """Bytes ÷ time: the throughput of one rank."""


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the section tree of a run without steps, parents before children."""

    name: str
    depth: int
    count: int
    sum_ns: float
    self_ns: float
    share: float
    """Self time as a share of the run's time."""
    beside: bool = False


class GpuUse(msgspec.Struct, frozen=True, kw_only=True):
    """Use of a GPU during the run; a figure is None if the GPU does not report it."""

    id: str
    """UUID of the GPU."""
    name: str
    busy_share: float | None
    """Mean share of the time in which a kernel ran."""
    memory_bytes: float | None
    """Peak memory in use."""
    temperature_c: float | None
    """Maximum temperature in degrees Celsius."""


class MachineUse(msgspec.Struct, frozen=True, kw_only=True):
    """Use of the run's machines during the run; several nodes together."""

    cpus: float | None
    """CPUs that the processes may use."""
    cpu_share: float | None
    memory_bytes: float | None
    memory_limit_bytes: float | None
    gpus: list[GpuUse]


class ProcessUse(msgspec.Struct, frozen=True, kw_only=True):
    """Resource use of the training processes, without their workers unless a field names them."""

    cpus: float
    """CPU time of all threads divided by elapsed time; mean over the processes."""
    memory_peak_bytes: int
    """Peak resident memory of the largest process."""
    workers_peak_bytes: int | None
    """Peak resident memory of all workers of one rank together; None: no worker was read."""
    cuda_peak_bytes: int | None
    """Peak memory that PyTorch's allocator had allocated on one device; None: no CUDA."""


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """A lost device: it stopped responding."""

    id: str
    name: str
    """Name such as ``gpu0``."""
    rank: int
    """Rank that uses the device; if no rank does, the first rank on its node."""
    count: int
    """Number of losses."""
    after_ns: int
    """Time from the start of the run to the first loss."""
    absent_ns: int | None
    """Duration of the last loss; None: the device did not come back."""
    text: str
    """Message of the driver at the first loss."""


class ProgramSeries(msgspec.Struct, frozen=True, kw_only=True):
    """One label set of an instrument of the program, all ranks together."""

    name: str
    kind: str
    """``counter``, ``updowncounter``, ``gauge`` or ``histogram``."""
    unit: str
    labels: dict[str, str]
    value: JsonNumber = 0.0
    """A counter's total, a histogram's sum, or a gauge's last value on any rank. For an up-down
    counter: the sum of the last values."""
    count: int | None = None
    """Number of values of a histogram."""


class AsOf(msgspec.Struct, frozen=True, kw_only=True):
    """Time up to which figures are complete on every rank."""

    time_ns: int
    """Unix time; for a finished run, its end."""
    step: int | None
    """Last finished step of the slowest rank; None: no step has finished, or the run has none."""


class Telemetry(msgspec.Struct, frozen=True, kw_only=True):
    """Quality of the recording."""

    lost: int | None
    """Items that at least one destination can no longer receive; None: not counted yet."""
    pending: int
    """Items that are not yet delivered to a server."""
    sections_lost: int
    """Sections dropped because shared memory was full: the figures do not include them."""
    overhead: float | None
    """Share of the processes' time that recording cost."""


class Summary(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="summary/1"):
    """Summary of a run, exact for the whole run."""

    id: str
    short_id: str
    name: str
    path: str
    outcome: str
    restarts: int
    rank: int | None
    """The only rank of the figures; None: all ranks."""
    ranks: int
    world_size: int
    nodes: int
    started_ns: int
    duration_ns: int
    """Time from the first start to the last end; for a running run, to its last sign of life."""
    has_gpu: bool
    failure: Failure | None
    integrations: list[str]
    """Names of the integrations that observed the program."""
    params: dict[str, Any]
    result: dict[str, Any]
    last: dict[str, JsonNumber]
    """Last logged values by name."""
    counted: dict[str, JsonNumber]
    """The program's own counters and histograms by name, summed over ranks and labels."""
    series: list[ProgramSeries]
    """Each label set of the program's own counters, histograms and gauges."""
    steps: StepFigures | None
    warm_up: WarmUp | None
    outside_ns: float
    outside_share: float
    outside: list[OutsideShare]
    beside: list[OutsideShare]
    """Sections on other threads and tasks outside steps; not part of ``outside_ns``."""
    checkpoints: list[CheckpointTotal]
    slowest: Slowest | None
    machine: MachineUse | None
    process: ProcessUse | None
    """Resource use reported by the training processes; known even for a run of one second."""
    used: list[SectionUse]
    """Resource use of measured sections."""
    gpu: StepsOnGpu | None
    """GPU times of the steps of the summary's phase; None: unknown for all steps."""
    ledger: Ledger | None
    """Breakdown of the run's wall time; None before the first process is known."""
    progress: Progress | None
    """Progress of a running training; None: it has ended, or the number of steps was not
    declared."""
    epochs: list[EpochFigures]
    marks: list[MarkedPoint]
    """Points that the program marked by ``run.mark()``, the first 1,000."""
    calls: list[CallFigures]
    """Durations of section calls: requests first, then by total time."""
    work: WorkFigures | None
    """Work of the models that the program declared; None: no model was declared."""
    losses: list[Loss]
    windows: int
    """Number of profiler windows, including those whose traces are still being read."""
    windows_left_out: dict[str, int]
    """Number of windows that were not recorded, by reason."""
    profiled_steps: int
    """Number of steps of the phase that a profiler slowed down."""
    tree: list[Branch]
    aggregates: list[AggregateTotal]
    telemetry: Telemetry
    next: str
    """Command that shows more."""
    as_of: AsOf | None
    """Time up to which the figures are complete; None: unknown, e.g. because nothing is stored
    yet."""
    unknown_rows: list[UnknownRows] = []
    """Timeline rows of profiler windows that may belong to a device, but are not in device
    figures."""
    files: list[CheckpointTotal] = []
    """Writes and reads of watched files."""
    loaders: list[LoaderUse] = []
    """Use of DataLoaders, if they were observed."""
    left_open: list[str] = []
    """Sections that were never closed: their time lasts to the end of the run."""
    missing: list[str] = []
    """Records that existed when the summary was requested and are not included, as text."""
    findings: list[Finding] = []
    """Findings, worst first."""


def no_summary(**known: Any) -> dict[str, Any]:
    """Return the fields of an empty summary, with the given ones set.

    Lists and mappings are empty, all other fields are None.
    """
    empty: dict[str, Any] = _nothing(Summary)
    return {"schema": Summary.__struct_config__.tag} | empty | known


def _nothing(kind: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return {field.name: _nothing(field.type) for field in msgspec.structs.fields(kind)}
    made = get_origin(kind)
    return made() if made in (list, dict) else None
