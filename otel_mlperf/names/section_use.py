"""Measures of a section's resource use, with their names.

CPU time, bytes and context switches are those of the section's thread. Memory is that of its
process: the kernel has it for all threads together.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from otel_mlperf.names.attributes import (
    CONTEXT_SWITCH,
    CUDA_MEMORY_DELTA,
    CUDA_MEMORY_PEAK,
    DISK_DIRECTION,
    ML_PHASE,
    SECTION_CATEGORY,
    SECTION_NAME,
)
from otel_mlperf.names.metric import Metric


class Measure(NamedTuple):
    """Measure of each call of a section."""

    key: str
    """Name in the tables and in JSON, with its unit."""
    attribute: str
    """Name of the span attribute."""
    meaning: str


CPU_NS: Final = Measure("cpu_ns", "ml.section.thread.cpu_time", "CPU time of its thread, ns")
SWITCHES: Final = Measure(
    "voluntary_switches",
    "ml.section.thread.context_switches.voluntary",
    "times that its thread waited",
)
INVOLUNTARY_SWITCHES: Final = Measure(
    "involuntary_switches",
    "ml.section.thread.context_switches.involuntary",
    "times that its thread lost the CPU although it had more to do",
)
READ_BYTES: Final = Measure(
    "read_bytes", "ml.section.thread.io.read", "bytes that its thread read, page cache included"
)
WRITTEN_BYTES: Final = Measure(
    "written_bytes", "ml.section.thread.io.written", "bytes that its thread wrote"
)
MEMORY_BEFORE: Final = Measure(
    "memory_before_bytes",
    "ml.section.process.memory.before",
    "resident memory of the process at its begin",
)
MEMORY_AFTER: Final = Measure(
    "memory_after_bytes",
    "ml.section.process.memory.after",
    "resident memory of the process at its end",
)
MEMORY_GROWTH: Final = Measure(
    "memory_growth_bytes", "ml.section.process.memory.growth", "the second less the first"
)
MEMORY_PEAK: Final = Measure(
    "memory_peak_bytes",
    "ml.section.process.memory.peak",
    "the most that was resident in it; known where it was the highest so far",
)
CUDA_GROWTH: Final = Measure(
    "cuda_growth_bytes", CUDA_MEMORY_DELTA, "what PyTorch's allocator gave out, less what came back"
)
CUDA_PEAK: Final = Measure(
    "cuda_peak_bytes",
    CUDA_MEMORY_PEAK,
    "the most that it had given out; known where it was the highest so far",
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
"""In the order in which a section's payload has them."""

_LABELS: Final = (SECTION_NAME, SECTION_CATEGORY, ML_PHASE)
SECTION_CPU: Final = Metric(
    "ml.section.cpu.time",
    "s",
    "counter",
    "CPU time of the thread in sections whose resources are measured; those inside count in each.",
    _LABELS,
)
SECTION_IO: Final = Metric(
    "ml.section.io",
    "By",
    "counter",
    "Bytes that the thread's calls read and wrote in them, the page cache included.",
    (*_LABELS, DISK_DIRECTION),
)
SECTION_SWITCHES: Final = Metric(
    "ml.section.context_switches",
    "{context_switch}",
    "counter",
    "Context switches of the thread in them.",
    (*_LABELS, CONTEXT_SWITCH),
)
SECTION_MEMORY_GROWTH: Final = Metric(
    "ml.section.memory.growth",
    "By",
    "updowncounter",
    "By how much resident memory of the process grew in them, all calls together.",
    _LABELS,
)
SECTION_MEMORY_PEAK: Final = Metric(
    "ml.section.memory.peak",
    "By",
    "gauge",
    "The most memory of the process that one of them was the first to reach.",
    _LABELS,
)
SECTION_CUDA_GROWTH: Final = Metric(
    "ml.section.cuda.memory.growth",
    "By",
    "updowncounter",
    "By how much memory of PyTorch's CUDA allocator grew in them, all calls together.",
    _LABELS,
)
SECTION_CUDA_PEAK: Final = Metric(
    "ml.section.cuda.memory.peak",
    "By",
    "gauge",
    "The most CUDA memory that one of them was the first to reach.",
    _LABELS,
)
