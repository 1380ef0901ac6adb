"""Data types of a run's summary, as ``--json`` prints them.

Times are nanoseconds, and means over the ranks of a multi-rank run, unless a field declares
otherwise.
"""

from __future__ import annotations

from typing import Any, get_origin

import msgspec

from otel_mlperf.analysis.run.given_number import GivenNumber  # noqa: TC001 - msgspec reads it
from otel_mlperf.analysis.run.run_processes import Failure  # noqa: TC001 - msgspec reads it
from otel_mlperf.analysis.steps.step_shapes import (  # noqa: TC001 - msgspec reads them
    AggregateTotal,
    Slowest,
    StepFigures,
    WarmUp,
)
from otel_mlperf.analysis.summary.call_shapes import CallFigures  # noqa: TC001 - msgspec reads it
from otel_mlperf.analysis.summary.epochs import EpochFigures  # noqa: TC001 - msgspec reads it
from otel_mlperf.analysis.summary.goodput_shapes import Ledger  # noqa: TC001 - msgspec reads it
from otel_mlperf.analysis.summary.gpu_use import StepsOnGpu  # noqa: TC001 - msgspec reads it
from otel_mlperf.analysis.summary.loader_shapes import LoaderUse  # noqa: TC001 - msgspec reads it
from otel_mlperf.analysis.summary.marks import MarkedPoint  # noqa: TC001 - msgspec reads it
from otel_mlperf.analysis.summary.progress import Progress  # noqa: TC001 - msgspec reads it
from otel_mlperf.analysis.summary.use_shapes import (  # noqa: TC001 - msgspec reads them
    ProcessUse,
    SectionUse,
)
from otel_mlperf.analysis.summary.work_figures import WorkFigures  # noqa: TC001 - msgspec reads it
from otel_mlperf.findings.finding import Finding  # noqa: TC001 - msgspec reads it
from otel_mlperf.store.window_facts import UnknownRows  # noqa: TC001 - msgspec reads it


class OutsideShare(msgspec.Struct, frozen=True, kw_only=True):
    """A share of the time that was not spent in steps."""

    name: str
    sum_ns: float
    count: int | None = None
    """Times on one rank; None for what is left over."""


class CheckpointTotal(msgspec.Struct, frozen=True, kw_only=True):
    """All that was written, or read, of checkpoints or files whose size is known; all ranks."""

    direction: str
    """``write`` or ``read``."""
    bytes: int
    time_ns: float
    """Of the calls, one after the other: those of several ranks add up."""
    bytes_per_s: float
    """Bytes ÷ time: what one rank saw."""


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the section tree of a run without steps, parents before children."""

    name: str
    depth: int
    count: int
    sum_ns: float
    self_ns: float
    share: float
    """Its own time as a share of the run's."""
    beside: bool = False


class GpuUse(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU over the time of the run; None: it does not say."""

    id: str
    """Its UUID."""
    name: str
    busy_share: float | None
    """Mean share of the time in which a kernel ran."""
    memory_bytes: float | None
    """The most in use."""
    temperature_c: float | None
    """The highest, in degrees Celsius."""


class MachineUse(msgspec.Struct, frozen=True, kw_only=True):
    """The machines of the run over its time; several nodes are taken together."""

    cpus: float | None
    """That the processes may use."""
    cpu_share: float | None
    memory_bytes: float | None
    memory_limit_bytes: float | None
    gpus: list[GpuUse]


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """A device that stopped answering."""

    id: str
    name: str
    """``gpu0``."""
    rank: int
    """Of the rank that uses it; of one that no rank uses, the first on its node."""
    count: int
    """How often."""
    after_ns: int
    """From the start of the run to the first time."""
    absent_ns: int | None
    """How long the last time took; None: it did not come back."""
    text: str
    """What the driver said the first time."""


class ProgramSeries(msgspec.Struct, frozen=True, kw_only=True):
    """One label set of an instrument of the program, all ranks together."""

    name: str
    kind: str
    """``counter``, ``updowncounter``, ``gauge`` or ``histogram``."""
    unit: str
    labels: dict[str, str]
    value: GivenNumber = 0.0
    """A counter's total, a histogram's sum; a gauge as it was set last, on any rank."""
    count: int | None = None
    """Values of a histogram."""


class AsOf(msgspec.Struct, frozen=True, kw_only=True):
    """Up to when figures are complete: what had ended by then is in them, on every rank."""

    time_ns: int
    """Unix time; of a run that has ended, its end."""
    step: int | None
    """The step that had ended last, of the slowest rank; None: none had, or the run has none."""


class Telemetry(msgspec.Struct, frozen=True, kw_only=True):
    """How well the run was recorded."""

    lost: int | None
    """Items that no destination can get any more; None if nobody has counted yet."""
    pending: int
    """Items that are still on their way to a server."""
    sections_lost: int
    """Sections that found no room in shared memory: the figures do not know of them."""
    overhead: float | None
    """Share of the time that recording took."""


class Summary(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="summary/1"):
    """All that the closing text says, exact for the whole run."""

    id: str
    short_id: str
    name: str
    path: str
    outcome: str
    restarts: int
    rank: int | None
    """The only rank that the figures are about; None: all of them."""
    ranks: int
    world_size: int
    nodes: int
    started_ns: int
    duration_ns: int
    """From the first start to the last end; of a running one, up to its last sign of life."""
    has_gpu: bool
    failure: Failure | None
    integrations: list[str]
    """Those that saw the program from outside, by name."""
    params: dict[str, Any]
    result: dict[str, Any]
    last: dict[str, GivenNumber]
    """The last value logged by name."""
    counted: dict[str, GivenNumber]
    """The program's own counters and histograms by name, all ranks and labels together."""
    series: list[ProgramSeries]
    """The same with their labels, and its gauges."""
    steps: StepFigures | None
    warm_up: WarmUp | None
    outside_ns: float
    outside_share: float
    outside: list[OutsideShare]
    beside: list[OutsideShare]
    """On other threads and tasks, in no step: no part of the time outside."""
    checkpoints: list[CheckpointTotal]
    slowest: Slowest | None
    machine: MachineUse | None
    process: ProcessUse | None
    """The training processes by their own account, also of a run of a second."""
    used: list[SectionUse]
    """What sections used of which that was measured."""
    gpu: StepsOnGpu | None
    """The main phase's steps on their GPUs; None: it is not known of any."""
    ledger: Ledger | None
    """What the run's wall time went into; None before a process of it is known."""
    progress: Progress | None
    """Of a training that goes on; None: it has ended, or nobody said how many steps there are."""
    epochs: list[EpochFigures]
    marks: list[MarkedPoint]
    """Points that the program marked by ``run.mark()``, the first 1,000."""
    calls: list[CallFigures]
    """How long calls of sections took: requests first, then what took most time."""
    work: WorkFigures | None
    """What the models computed that the program named; None: it named none."""
    losses: list[Loss]
    windows: int
    """Profiler windows that were recorded, converted or not."""
    windows_left_out: dict[str, int]
    """How many were not, by the reason in words."""
    profiled_steps: int
    """Steps, of those that the figures are about, that a profiler has slowed down."""
    tree: list[Branch]
    aggregates: list[AggregateTotal]
    telemetry: Telemetry
    next: str
    """A command that says more."""
    as_of: AsOf | None
    """Up to when the figures are complete; None: nobody knows, nothing may be stored yet."""
    unknown_rows: list[UnknownRows] = []
    """Rows in profiler windows that may be a device's, and are in no number of devices."""
    files: list[CheckpointTotal] = []
    """What calls of files wrote and read, of those that were watched."""
    loaders: list[LoaderUse] = []
    """What happened inside DataLoaders, where that was seen."""
    left_open: list[str] = []
    """Sections that nobody closed: their time lasts to the end of the run."""
    missing: list[str] = []
    """What had been recorded when the summary was asked for and is not in it, in words."""
    findings: list[Finding] = []
    """What is worth changing, worst first."""


def no_summary(**known: Any) -> dict[str, Any]:
    """The fields of a summary of which nothing but this is known.

    Lists and mappings are empty, all else is None.
    """
    empty: dict[str, Any] = _nothing(Summary)
    return {"schema": Summary.__struct_config__.tag} | empty | known


def _nothing(kind: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return {field.name: _nothing(field.type) for field in msgspec.structs.fields(kind)}
    made = get_origin(kind)
    return made() if made in (list, dict) else None
