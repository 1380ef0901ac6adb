"""Metrics of the health of this package.

Each created item is counted a second time when its outcome is known: delivered, rolled up, lost, …
"""

from __future__ import annotations

from typing import Final

from otel_mlperf.names.attributes import (
    CPU_MODE,
    DESTINATION,
    ERROR_TYPE,
    OUTCOME,
    SAMPLER,
    SIGNAL,
)
from otel_mlperf.names.metric import Metric

ITEMS: Final = Metric(
    "otel_mlperf.items",
    "{item}",
    "counter",
    "Items (section rows, metric points) by outcome: delivered, rolled_up, unselected, lost.",
    (SIGNAL, DESTINATION, OUTCOME, ERROR_TYPE),
)
ITEMS_CREATED: Final = Metric(
    "otel_mlperf.items.created",
    "{item}",
    "counter",
    "Created items: section rows, including those dropped by a full ring, and metric points.",
    (SIGNAL, DESTINATION),
)
ITEMS_PENDING: Final = Metric(
    "otel_mlperf.items.pending",
    "{item}",
    "gauge",
    "Pending items: created = delivered + rolled_up + unselected + lost + pending.",
    (SIGNAL, DESTINATION),
)
OVERHEAD_TIME: Final = Metric(
    "otel_mlperf.overhead.time",
    "s",
    "counter",
    "Overhead of recording in the process: number of sections x cost of one as measured at the "
    "start, plus the measured time of watching an untouched loop, measuring sections and "
    "copying values from a device.",
)
AGENT_CPU_TIME: Final = Metric(
    "otel_mlperf.agent.cpu.time",
    "s",
    "counter",
    "CPU time of the agent, including completed conversions of profiler windows.",
    (CPU_MODE,),
)
AGENT_MEMORY: Final = Metric(
    "otel_mlperf.agent.memory.usage", "By", "updowncounter", "Resident memory of the agent."
)
JOURNAL_USAGE: Final = Metric(
    "otel_mlperf.journal.usage",
    "By",
    "gauge",
    "Maximum of unread bytes in one of the rank's journals since the previous reading.",
)
JOURNAL_LIMIT: Final = Metric(
    "otel_mlperf.journal.limit",
    "By",
    "updowncounter",
    "Size of that journal's ring; records that do not fit are dropped and counted.",
)
JOURNAL_LOST: Final = Metric(
    "otel_mlperf.journal.lost",
    "{item}",
    "counter",
    "Records that did not fit into the journal's other tables (names, cells, values, ...), "
    "overwritten records (damaged) and errors of the recorder.",
    (ERROR_TYPE,),
)
REDACTED: Final = Metric(
    "otel_mlperf.redacted",
    "{value}",
    "counter",
    "Values redacted because their name or format is that of a secret.",
)
CONVERSIONS: Final = Metric(
    "otel_mlperf.conversions",
    "{window}",
    "counter",
    "Converted profiler windows by outcome: delivered to the store, lost.",
    (OUTCOME,),
)
PROFILE_WINDOWS: Final = Metric(
    "otel_mlperf.profile.windows",
    "{window}",
    "counter",
    "Profiler windows whose trace was written.",
)
SKIPPED_BUSY: Final = Metric(
    "otel_mlperf.profile.skipped.busy",
    "{window}",
    "counter",
    "Profiler windows skipped because another profiler was running.",
)
SKIPPED_NO_TORCH: Final = Metric(
    "otel_mlperf.profile.skipped.no_torch",
    "{window}",
    "counter",
    "Profiler windows skipped because the program has not imported torch.",
)
SKIPPED_MEMORY: Final = Metric(
    "otel_mlperf.profile.skipped.memory",
    "{window}",
    "counter",
    "Profiler windows skipped because earlier windows have increased the memory of the process "
    "too much.",
)
SKIPPED_CUDA_GRAPHS: Final = Metric(
    "otel_mlperf.profile.skipped.cuda_graphs",
    "{window}",
    "counter",
    "Profiler windows skipped because CUDA graphs crash under a profiler with CUDA before 12.6.",
)
SKIPPED_FAILED: Final = Metric(
    "otel_mlperf.profile.skipped.failed",
    "{window}",
    "counter",
    "Profiler windows lost because the profiler could not start or the trace could not be written.",
)
SKIPPED_NOT_REACHED: Final = Metric(
    "otel_mlperf.profile.skipped.not_reached",
    "{window}",
    "counter",
    "Profiler windows skipped because the run or block ended before they had recorded a step.",
)
DOCTOR_CHECK: Final = Metric(
    "otel_mlperf.doctor.check",
    "",
    "gauge",
    "Test point that ``otel-mlperf doctor`` sends and queries.",
)
SAMPLER_DURATION: Final = Metric(
    "otel_mlperf.sampler.duration",
    "s",
    "gauge",
    "Duration of the last pass of a sampler.",
    (SAMPLER,),
)
SAMPLER_LATE: Final = Metric(
    "otel_mlperf.sampler.late",
    "{pass}",
    "counter",
    "Passes of a sampler that failed or missed their deadline.",
    (SAMPLER,),
)
