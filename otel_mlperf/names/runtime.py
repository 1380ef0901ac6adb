"""Metrics that the training process reports itself, through its journal."""

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
    "Objects that they have freed.",
    (GC_GENERATION,),
)
GC_UNCOLLECTABLE: Final = Metric(
    "cpython.gc.uncollectable_objects",
    "{object}",
    "counter",
    "Objects that they have found to be garbage and could not free.",
    (GC_GENERATION,),
)
GC_TIME: Final = Metric(
    "ml.process.gc.time",
    "s",
    "counter",
    "Time for which the program stood still for them.",
    (GC_GENERATION,),
)
_PLACE: Final = (CODE_FILE, CODE_FUNCTION, CODE_LINE, STACK_CALL, STACK_PACKAGE, STACK_WITHIN)
STACK_SAMPLES: Final = Metric(
    "ml.process.stack_samples",
    "{sample}",
    "counter",
    "Looks at the main thread's stack, ten a second in steps that are in no section for 15 % "
    "(detailed: in all): the program's innermost line.",
    _PLACE,
)
STACK_SAMPLES_BETWEEN: Final = Metric(
    "ml.process.stack_samples.between_steps",
    "{sample}",
    "counter",
    "The same between the steps of the training, where 15 % of the time are in no section.",
    _PLACE,
)
STACK_SAMPLES_SET_UP: Final = Metric(
    "ml.process.stack_samples.set_up",
    "{sample}",
    "counter",
    "The same before the first step (detailed only).",
    _PLACE,
)
CUDA_MEMORY: Final = Metric(
    "pytorch.cuda.memory.usage",
    "By",
    "updowncounter",
    "Memory of PyTorch's allocator at the begin of a step: allocated, reserved.",
    (DEVICE_INDEX, HW_ID, CUDA_MEMORY_STATE),
)
CUDA_MEMORY_MOST: Final = Metric(
    "pytorch.cuda.memory.peak",
    "By",
    "gauge",
    "The most since the run began, or since the program reset torch's peak; where there was more "
    "before the run, the most that was read.",
    (DEVICE_INDEX, HW_ID, CUDA_MEMORY_STATE),
)
CUDA_MEMORY_SPLIT: Final = Metric(
    "pytorch.cuda.memory.inactive_split",
    "By",
    "updowncounter",
    "Free parts of blocks whose other parts are in use: what fragmentation holds back.",
    (DEVICE_INDEX, HW_ID),
)
CUDA_RETRIES: Final = Metric(
    "pytorch.cuda.memory.retries",
    "{retry}",
    "counter",
    "Allocations that failed until the allocator had given back its cached memory.",
    (DEVICE_INDEX, HW_ID),
)
CUDA_DEVICE_ALLOCATIONS: Final = Metric(
    "pytorch.cuda.memory.device_allocations",
    "{allocation}",
    "counter",
    "Times that the allocator asked the driver for memory (cudaMalloc, cuMemMap): what tensors "
    "give back it keeps.",
    (DEVICE_INDEX, HW_ID),
)
CUDA_OOMS: Final = Metric(
    "pytorch.cuda.memory.ooms",
    "{error}",
    "counter",
    "Allocations that failed: out of memory.",
    (DEVICE_INDEX, HW_ID),
)
MPS_MEMORY: Final = Metric(
    "pytorch.mps.memory.usage",
    "By",
    "updowncounter",
    "Memory of tensors on Apple's GPU at the begin of a step, without what torch keeps for others.",
)
MPS_DRIVER_MEMORY: Final = Metric(
    "pytorch.mps.memory.driver",
    "By",
    "updowncounter",
    "Memory that Metal has given the process, with what torch and its libraries keep.",
)
