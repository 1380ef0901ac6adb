"""Metrics of the package's own health.

Each item that was created is counted once more where it ended: delivered, rolled up, lost, …
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
    "What became of the items: delivered, rolled_up, unselected, lost.",
    (SIGNAL, DESTINATION, OUTCOME, ERROR_TYPE),
)
ITEMS_CREATED: Final = Metric(
    "otel_mlperf.items.created",
    "{item}",
    "counter",
    "Items that there were: section rows, drops of a full ring, metric points.",
    (SIGNAL, DESTINATION),
)
ITEMS_PENDING: Final = Metric(
    "otel_mlperf.items.pending",
    "{item}",
    "gauge",
    "Items that still wait: created = delivered + rolled_up + unselected + lost + pending.",
    (SIGNAL, DESTINATION),
)
OVERHEAD_TIME: Final = Metric(
    "otel_mlperf.overhead.time",
    "s",
    "counter",
    "Time that recording took in the process: sections x the cost measured at its start, "
    "and what watching an untouched loop, measuring sections and copying values from a device were "
    "seen to take.",
)
AGENT_CPU_TIME: Final = Metric(
    "otel_mlperf.agent.cpu.time",
    "s",
    "counter",
    "CPU time of the agent, with the conversions of profiler windows that have ended.",
    (CPU_MODE,),
)
AGENT_MEMORY: Final = Metric(
    "otel_mlperf.agent.memory.usage", "By", "updowncounter", "Resident memory of the agent."
)
JOURNAL_USAGE: Final = Metric(
    "otel_mlperf.journal.usage",
    "By",
    "gauge",
    "The most that the agent found unread in one of the rank's journals since the reading before.",
)
JOURNAL_LIMIT: Final = Metric(
    "otel_mlperf.journal.limit",
    "By",
    "updowncounter",
    "Size of that journal's ring: what finds it full is dropped, and counted.",
)
JOURNAL_LOST: Final = Metric(
    "otel_mlperf.journal.lost",
    "{item}",
    "counter",
    "What found no room beside the ring (names, cells, values, ...) or was written over (damaged), "
    "and errors of the recorder.",
    (ERROR_TYPE,),
)
REDACTED: Final = Metric(
    "otel_mlperf.redacted",
    "{value}",
    "counter",
    "Values hidden because their name or their form is a secret's.",
)
CONVERSIONS: Final = Metric(
    "otel_mlperf.conversions",
    "{window}",
    "counter",
    "Profiler windows by what became of them: delivered to the store, lost.",
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
    "Windows left out because another profiler was running.",
)
SKIPPED_NO_TORCH: Final = Metric(
    "otel_mlperf.profile.skipped.no_torch",
    "{window}",
    "counter",
    "Windows left out because the program has not imported torch.",
)
SKIPPED_MEMORY: Final = Metric(
    "otel_mlperf.profile.skipped.memory",
    "{window}",
    "counter",
    "Windows left out because those before have made the process grow too far.",
)
SKIPPED_CUDA_GRAPHS: Final = Metric(
    "otel_mlperf.profile.skipped.cuda_graphs",
    "{window}",
    "counter",
    "Windows left out because CUDA graphs crash under a profiler with CUDA before 12.6.",
)
SKIPPED_FAILED: Final = Metric(
    "otel_mlperf.profile.skipped.failed",
    "{window}",
    "counter",
    "Windows lost because the profiler could not start, or the trace could not be written.",
)
SKIPPED_NOT_REACHED: Final = Metric(
    "otel_mlperf.profile.skipped.not_reached",
    "{window}",
    "counter",
    "Windows left out because run or block ended before they had recorded a step.",
)
DOCTOR_CHECK: Final = Metric(
    "otel_mlperf.doctor.check", "", "gauge", "Sent by ``otel-mlperf doctor`` to be found again."
)
SAMPLER_DURATION: Final = Metric(
    "otel_mlperf.sampler.duration",
    "s",
    "gauge",
    "Time that the last pass of a sampler took.",
    (SAMPLER,),
)
SAMPLER_LATE: Final = Metric(
    "otel_mlperf.sampler.late",
    "{pass}",
    "counter",
    "Passes that gave nothing within their deadline, those that failed included.",
    (SAMPLER,),
)
