"""Measures and metrics of sections: resource use, GPU time, data loading and files.

- Resource use: CPU time, bytes and context switches are those of the section's thread. Memory is
  that of the process, because the kernel only reports it for all threads together.
- GPU time: device time between the stamps at a section's start and end, each in the current stream.
- Data loading: waits of the loop, and concurrent work of the loader's workers, by dataset class.
- Files: file calls are measured only while the user's code requests it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from otel_mlperf.names.attributes import (
    CONTEXT_SWITCH,
    CUDA_MEMORY_DELTA,
    CUDA_MEMORY_PEAK,
    DISK_DIRECTION,
    ERROR_TYPE,
    ML_PHASE,
    SECTION_CATEGORY,
    SECTION_NAME,
)
from otel_mlperf.names.metric import Metric


class Measure(NamedTuple):
    """Kind of value that is measured for each call of a section."""

    key: str
    """Name in tables and JSON, with the unit as suffix."""
    attribute: str
    """Name of the span attribute."""
    meaning: str


CPU_NS: Final = Measure(
    "cpu_ns", "ml.section.thread.cpu_time", "CPU time of its thread in nanoseconds"
)
SWITCHES: Final = Measure(
    "voluntary_switches",
    "ml.section.thread.context_switches.voluntary",
    "voluntary context switches: its thread waited",
)
INVOLUNTARY_SWITCHES: Final = Measure(
    "involuntary_switches",
    "ml.section.thread.context_switches.involuntary",
    "involuntary context switches: its thread was preempted",
)
READ_BYTES: Final = Measure(
    "read_bytes", "ml.section.thread.io.read", "bytes read by its thread, page cache included"
)
WRITTEN_BYTES: Final = Measure(
    "written_bytes", "ml.section.thread.io.written", "bytes written by its thread"
)
MEMORY_BEFORE: Final = Measure(
    "memory_before_bytes",
    "ml.section.process.memory.before",
    "resident memory of the process at its start",
)
MEMORY_AFTER: Final = Measure(
    "memory_after_bytes",
    "ml.section.process.memory.after",
    "resident memory of the process at its end",
)
MEMORY_GROWTH: Final = Measure(
    "memory_growth_bytes",
    "ml.section.process.memory.growth",
    "resident memory of the process at its end minus at its start",
)
MEMORY_PEAK: Final = Measure(
    "memory_peak_bytes",
    "ml.section.process.memory.peak",
    "peak resident memory during the call; known only if it was a new maximum of the process",
)
CUDA_GROWTH: Final = Measure(
    "cuda_growth_bytes",
    CUDA_MEMORY_DELTA,
    "memory allocated minus memory freed by PyTorch's CUDA allocator",
)
CUDA_PEAK: Final = Measure(
    "cuda_peak_bytes",
    CUDA_MEMORY_PEAK,
    "peak memory allocated by PyTorch's CUDA allocator; known only if it was a new maximum",
)
MEASURES: Final = (
    CPU_NS,
    SWITCHES,
    INVOLUNTARY_SWITCHES,
    READ_BYTES,
    WRITTEN_BYTES,
    MEMORY_BEFORE,
    MEMORY_AFTER,
    MEMORY_GROWTH,
    MEMORY_PEAK,
    CUDA_GROWTH,
    CUDA_PEAK,
)
"""Measures in the order of a section's payload."""

_LABELS: Final = (SECTION_NAME, SECTION_CATEGORY, ML_PHASE)
SECTION_CPU: Final = Metric(
    "ml.section.cpu.time",
    "s",
    "counter",
    "CPU time of the thread in sections with measured resources, child sections included.",
    _LABELS,
)
SECTION_IO: Final = Metric(
    "ml.section.io",
    "By",
    "counter",
    "Bytes read and written by the thread in sections with measured resources, page cache "
    "included.",
    (*_LABELS, DISK_DIRECTION),
)
SECTION_SWITCHES: Final = Metric(
    "ml.section.context_switches",
    "{context_switch}",
    "counter",
    "Context switches of the thread in sections with measured resources.",
    (*_LABELS, CONTEXT_SWITCH),
)
SECTION_MEMORY_GROWTH: Final = Metric(
    "ml.section.memory.growth",
    "By",
    "updowncounter",
    "Growth of the process's resident memory in sections with measured resources, summed over "
    "calls.",
    _LABELS,
)
SECTION_MEMORY_PEAK: Final = Metric(
    "ml.section.memory.peak",
    "By",
    "gauge",
    "Highest new peak of the process's resident memory that a call of the section set.",
    _LABELS,
)
SECTION_CUDA_GROWTH: Final = Metric(
    "ml.section.cuda.memory.growth",
    "By",
    "updowncounter",
    "Growth of the memory of PyTorch's CUDA allocator in sections with measured resources, "
    "summed over calls.",
    _LABELS,
)
SECTION_CUDA_PEAK: Final = Metric(
    "ml.section.cuda.memory.peak",
    "By",
    "gauge",
    "Highest new peak of PyTorch's CUDA memory that a call of the section set.",
    _LABELS,
)

GPU_NS: Final = Measure(
    "gpu_ns", "ml.section.gpu.time", "time on the GPU from its start to its end in nanoseconds"
)
GPU_IDLE: Final = "ml.step.gpu.idle"
"""For a step: GPU time in ns outside the sections that launch GPU work."""
PACED_BY: Final = "ml.step.paced_by"
"""``host`` (the GPU waited for the host), ``device`` (the host was ahead) or ``unknown`` (the
clocks are not accurate enough)."""

SECTION_GPU: Final = Metric(
    "ml.section.gpu.time",
    "s",
    "counter",
    "Time on the GPU from start to end of a section, including child sections and gaps.",
    (SECTION_NAME, SECTION_CATEGORY, ML_PHASE),
)
STEP_GPU: Final = Metric(
    "ml.step.gpu.time",
    "s",
    "counter",
    "Time on the GPU from start to end of steps, by what limited the step: host or device.",
    (ML_PHASE, PACED_BY),
)
STEP_GPU_IDLE: Final = Metric(
    "ml.step.gpu.idle.time",
    "s",
    "counter",
    "Part of ml.step.gpu.time outside sections that launch GPU work; idle time if no other "
    "code launches any.",
    (ML_PHASE,),
)
GPU_TIME_MISSED: Final = Metric(
    "otel_mlperf.gpu_time.missed",
    "{section}",
    "counter",
    "Sections without GPU time by reason: pool, capture, stream, late, error.",
    (ERROR_TYPE,),
)

DATASET: Final = "ml.dataset.name"
"""Class of a loader's dataset, with a number if several loaders have the same class at a time."""
LOADER_WORKER: Final = "ml.dataloader.worker.id"
"""Number of a worker; ``main``: the training process itself, if the loader has no workers."""
LOADER_WORKERS: Final = "ml.dataloader.workers.state"
"""State of the workers in a pass: ``started`` for it, ``kept`` from the previous pass, or ``none``
(the loader has no workers)."""
LOADER_PART: Final = "ml.dataloader.fetch.part"
"""``items`` (``__getitem__`` or the dataset's iterator) or ``collate`` (making a batch of them)."""
LOADER_ITEMS: Final = "items"
LOADER_COLLATE: Final = "collate"

LOADER_WAIT: Final = Metric(
    "ml.dataloader.wait.time",
    "s",
    "counter",
    "Time that the program waited for batches of a DataLoader.",
    (DATASET,),
)
LOADER_BATCHES: Final = Metric(
    "ml.dataloader.batches",
    "{batch}",
    "counter",
    "Batches that the program received from a DataLoader.",
    (DATASET,),
)
LOADER_READY: Final = Metric(
    "ml.dataloader.batches.ready",
    "{batch}",
    "histogram",
    "Batches queued by workers when the program requested one.",
    (DATASET,),
)
LOADER_NONE_READY: Final = Metric(
    "ml.dataloader.batches.awaited",
    "{batch}",
    "counter",
    "Batches that the program requested while the queue was empty.",
    (DATASET,),
)
LOADER_FIRST_BATCH: Final = Metric(
    "ml.dataloader.first_batch.time",
    "s",
    "histogram",
    "Time from the start of a pass over a DataLoader to its first batch, including the start "
    "of workers.",
    (DATASET, LOADER_WORKERS),
)
LOADER_FETCHED: Final = Metric(
    "ml.dataloader.worker.batches",
    "{batch}",
    "counter",
    "Batches fetched by a DataLoader worker.",
    (DATASET, LOADER_WORKER),
)
LOADER_FETCH_TIME: Final = Metric(
    "ml.dataloader.worker.time",
    "s",
    "counter",
    "Time of fetching batches in a DataLoader worker, by part: items, collate.",
    (DATASET, LOADER_WORKER, LOADER_PART),
)
LOADER_CPU: Final = Metric(
    "ml.dataloader.worker.cpu.time",
    "s",
    "counter",
    "CPU time of a DataLoader worker's thread in fetching samples, without collating.",
    (DATASET, LOADER_WORKER),
)
LOADER_DELAY: Final = Metric(
    "ml.dataloader.worker.delay.time",
    "s",
    "counter",
    "Time that a DataLoader worker was runnable without a CPU while fetching samples, where "
    "the kernel reports it.",
    (DATASET, LOADER_WORKER),
)
LOADER_SIZED: Final = Metric(
    "ml.dataloader.worker.sized.batches",
    "{batch}",
    "counter",
    "Batches whose elements were counted: the first 32 of a DataLoader worker, then one in 16.",
    (DATASET, LOADER_WORKER),
)
LOADER_ELEMENTS: Final = Metric(
    "ml.dataloader.worker.sized.elements",
    "{element}",
    "counter",
    "Elements of the largest tensor of each sample in batches with counted elements, before "
    "padding.",
    (DATASET, LOADER_WORKER),
)
PLACES: Final = Metric(
    "ml.batch.places",
    "{place}",
    "counter",
    "Token positions, padding included, in inspected batches (the 1st, 2nd, 4th, 8th, …).",
)
PADDED: Final = Metric(
    "ml.batch.places.padded",
    "{place}",
    "counter",
    "Padding positions among the token positions of inspected batches.",
)
LOADER_END: Final = Metric(
    "ml.dataloader.end.time",
    "s",
    "histogram",
    "Time from the last batch of a pass over a DataLoader to the end of the pass, including "
    "the end of workers that are not persistent.",
    (DATASET, LOADER_WORKERS),
)
LOADER_PIN: Final = Metric(
    "ml.dataloader.pin.time",
    "s",
    "histogram",
    "Time to copy a batch into pinned memory, in the pinning thread.",
)

SPAN_FILE_READ: Final = "file.read"
SPAN_FILE_WRITE: Final = "file.write"
FILE_READ: Final = "read"
FILE_WRITE: Final = "write"
FILE_IO: Final = Metric(
    "ml.file.io",
    "By",
    "counter",
    "Bytes read and written by calls of files that were opened while files were watched.",
    (DISK_DIRECTION,),
)
FILE_IO_TIME: Final = Metric(
    "ml.file.io.time",
    "s",
    "counter",
    "Duration of the calls counted in ml.file.io.",
    (DISK_DIRECTION,),
)
