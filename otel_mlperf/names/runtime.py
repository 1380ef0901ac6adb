"""Metrics that the training process itself reports through its journal."""

from __future__ import annotations

from typing import Final

from otel_mlperf.names.attributes import (
    CODE_FILE,
    CODE_FUNCTION,
    CODE_LINE,
    CUDA_MEMORY_STATE,
    DEVICE_INDEX,
    GC_GENERATION,
    HW_ID,
    STACK_CALL,
    STACK_PACKAGE,
    STACK_WITHIN,
)
from otel_mlperf.names.metric import Metric

GC_COLLECTIONS: Final = Metric(
    "cpython.gc.collections",
    "{collection}",
    "counter",
    "Garbage collections of the training process, by generation.",
    (GC_GENERATION,),
)
GC_COLLECTED: Final = Metric(
    "cpython.gc.collected_objects",
    "{object}",
    "counter",
    "Objects freed by garbage collections.",
    (GC_GENERATION,),
)
GC_UNCOLLECTABLE: Final = Metric(
    "cpython.gc.uncollectable_objects",
    "{object}",
    "counter",
    "Objects that garbage collections found unreachable and could not free.",
    (GC_GENERATION,),
)
GC_TIME: Final = Metric(
    "ml.process.gc.time",
    "s",
    "counter",
    "Pauses of the program by garbage collections.",
    (GC_GENERATION,),
)
_PLACE: Final = (CODE_FILE, CODE_FUNCTION, CODE_LINE, STACK_CALL, STACK_PACKAGE, STACK_WITHIN)
STACK_SAMPLES: Final = Metric(
    "ml.process.stack_samples",
    "{sample}",
    "counter",
    "Samples of the main thread's stack by the program's innermost line: ten a second in steps "
    "with at least 15 % untracked time (detailed: in all steps).",
    _PLACE,
)
STACK_SAMPLES_BETWEEN: Final = Metric(
    "ml.process.stack_samples.between_steps",
    "{sample}",
    "counter",
    "Samples of the main thread's stack between training steps, if at least 15 % of that time "
    "is untracked.",
    _PLACE,
)
STACK_SAMPLES_SET_UP: Final = Metric(
    "ml.process.stack_samples.set_up",
    "{sample}",
    "counter",
    "Samples of the main thread's stack before the first step (detailed only).",
    _PLACE,
)
CUDA_MEMORY: Final = Metric(
    "pytorch.cuda.memory.usage",
    "By",
    "updowncounter",
    "Memory of PyTorch's CUDA allocator at the start of a step: allocated, reserved.",
    (DEVICE_INDEX, HW_ID, CUDA_MEMORY_STATE),
)
CUDA_MEMORY_PEAK_USAGE: Final = Metric(
    "pytorch.cuda.memory.peak",
    "By",
    "gauge",
    "Peak memory of PyTorch's CUDA allocator since the start of the run, or since the program "
    "reset torch's peak; if the peak is older than the run, the maximum reading.",
    (DEVICE_INDEX, HW_ID, CUDA_MEMORY_STATE),
)
CUDA_MEMORY_SPLIT: Final = Metric(
    "pytorch.cuda.memory.inactive_split",
    "By",
    "updowncounter",
    "Unused parts of partly used blocks of the allocator: memory unavailable because of "
    "fragmentation.",
    (DEVICE_INDEX, HW_ID),
)
CUDA_RETRIES: Final = Metric(
    "pytorch.cuda.memory.retries",
    "{retry}",
    "counter",
    "Allocations that succeeded only after the allocator had released its cached memory.",
    (DEVICE_INDEX, HW_ID),
)
CUDA_DEVICE_ALLOCATIONS: Final = Metric(
    "pytorch.cuda.memory.device_allocations",
    "{allocation}",
    "counter",
    "Requests of the allocator for memory from the driver (cudaMalloc, cuMemMap); memory that "
    "tensors release stays in its cache.",
    (DEVICE_INDEX, HW_ID),
)
CUDA_OOMS: Final = Metric(
    "pytorch.cuda.memory.ooms",
    "{error}",
    "counter",
    "Allocations that failed with out of memory.",
    (DEVICE_INDEX, HW_ID),
)
MPS_MEMORY: Final = Metric(
    "pytorch.mps.memory.usage",
    "By",
    "updowncounter",
    "Memory of tensors on Apple's GPU at the start of a step, without torch's cache.",
)
MPS_DRIVER_MEMORY: Final = Metric(
    "pytorch.mps.memory.driver",
    "By",
    "updowncounter",
    "Memory that Metal has allocated to the process, including the caches of torch and its "
    "libraries.",
)
