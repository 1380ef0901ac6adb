"""Collective operations in a trace: operation, process group and bytes moved of each event.

One collective has up to four events: the operator ``record_param_comms`` with the requested
arguments, the annotation of the backend inside that operator (``nccl:all_reduce``), the kernel, and
the device's copy of the annotation. Values that the kernel does not record (before PyTorch 2.3:
all) are copied from the operator that launched the kernel. A value that no event records is None.

The profiler writes element types as C++ names them (``c10::BFloat16``, ``long int``) or as
PyTorch's enum does (``BFloat16``, ``Long``). Users know them as ``torch.bfloat16`` and
``torch.int64``.
"""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from otel_mlperf.kineto.linking.forest import Forest
from otel_mlperf.kineto.linking.linked_events import Role, find_roles
from otel_mlperf.kineto.reading.trace_reader import read_details
from otel_mlperf.kineto.trace_events import NONE

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from otel_mlperf.kineto.linking.linked_events import Links
    from otel_mlperf.kineto.trace_events import Trace


_OPERATOR: Final = "record_param_comms"
_ANNOTATION: Final = re.compile(r"(nccl|rccl|gloo|ucc|mpi|xccl|hccl|ccl):(?!:)(.+)")
_KERNEL: Final = re.compile(r"nccl|rccl|oneccl", re.IGNORECASE)
_OPERATIONS: Final = (
    *("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "send_recv"),
    *("barrier", "send", "recv", "reduce", "gather", "scatter"),
)
"""Ordered so that a name precedes all names that it contains."""
_SHAPE: Final = re.compile(
    r"_(RING|TREE|COLLNET_DIRECT|COLLNET_CHAIN|COLLNET|NVLS_TREE|NVLS|PAT)_(LL128|LL|SIMPLE)(?![^_(])"
)

_MAX_RANKS: Final = 1 << 20
"""Maximum plausible size of a process group; a list of more ranks is not read."""


class Collective(NamedTuple):
    """Recorded facts about a collective operation; a fact that the file does not record is None."""

    operation: str
    """``all_reduce``, ``all_gather``, …; ``send_recv`` if a kernel does not record more detail."""
    backend: str | None = None
    group: str | None = None
    """Name of the process group."""
    group_size: int | None = None
    """Number of ranks in the group."""
    ranks: tuple[int, ...] | None = None
    in_bytes: int | None = None
    """Bytes that this rank sent: number of elements times element size."""
    out_bytes: int | None = None
    """Bytes that this rank received."""
    element_type: str | None = None
    sequence: int | None = None
    """Number of the operation in its process group, which is the same on all ranks."""
    algorithm: str | None = None
    """Algorithm of an NCCL kernel: ``ring``, ``tree``, …"""
    protocol: str | None = None
    """Protocol of an NCCL kernel: ``ll``, ``ll128`` or ``simple``."""

    @property
    def message_bytes(self) -> int | None:
        """Size of the message as in NCCL's tests: the larger of the known ``*_bytes``, or None."""
        known = [size for size in (self.in_bytes, self.out_bytes) if size is not None]
        return max(known, default=None)

    @property
    def bus_bytes(self) -> float | None:
        """Bytes over the busiest link: bus bandwidth is this value divided by the duration.

        The value is the message size times the factor of NCCL's tests: ``2 (n - 1) / n`` for an
        all-reduce of n ranks, ``(n - 1) / n`` for all-gather, reduce-scatter and all-to-all,
        otherwise 1. It is None if the file does not record the values required.
        """
        size, ranks = self.message_bytes, self.group_size
        if self.operation in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
            if size is None or not ranks:
                return None
            return size * (ranks - 1) / ranks * (2 if self.operation == "all_reduce" else 1)
        return size


def collectives(trace: Trace, links: Links) -> dict[int, Collective]:
    """Return the facts about each event of a collective operation, by row of the event.

    Raises:
        TraceError: the trace file cannot be read again.
    """
    rows, operators, annotations = _find_parts(trace, links)
    requested = {*rows, *operators.values()} - {NONE}
    details = read_details(trace, sorted(requested)) if requested else {}
    known = {}
    for row in rows:
        operator = operators[row]
        # The event's own arguments take precedence; its operator supplies missing arguments.
        args = details.get(operator, {}) | details[row]
        labels = [trace.names[trace.events.name[row]]]
        if operator in annotations:
            labels.insert(0, trace.names[trace.events.name[annotations[operator]]])
        if (collective := _describe(args, labels)) is not None:
            known[row] = collective
    return known


def is_collective(annotation: str) -> bool:
    """Return whether ``annotation`` is a backend's annotation of a single collective."""
    return _ANNOTATION.fullmatch(annotation) is not None


def _find_parts(trace: Trace, links: Links) -> tuple[list[int], dict[int, int], dict[int, int]]:
    """Return the rows of events of collectives, their operators, and annotations by operator.

    The operator of an event is the row of the ``record_param_comms`` that requested it, or NONE.
    The annotation of an operator is the row of the first annotation of a backend inside it.
    """
    name, roles = trace.events.name, find_roles(trace)
    is_operator = (roles == Role.OPERATOR) & _named(trace, _OPERATOR.__eq__)[name]
    is_annotated = _named(trace, _ANNOTATION.fullmatch)[name]
    is_copy = (roles == Role.DEVICE_ANNOTATION) & is_annotated
    is_annotation = (roles != Role.DEVICE_ANNOTATION) & ~links.is_device & is_annotated
    is_kernel = (roles == Role.DEVICE) & _named(trace, _KERNEL.search)[name]
    above = Forest(links.around).nearest(is_operator)
    cause = np.where(links.launch != NONE, links.launch, links.parent)
    on_host = np.where(links.is_device, cause, np.arange(len(name)))
    operator = np.append(np.where(is_operator, np.arange(len(name)), above), NONE)[on_host]
    rows = np.flatnonzero(is_operator | is_annotation | is_kernel | is_copy).tolist()
    # In reverse order, so that the dictionary keeps the first of several annotations.
    annotations = np.flatnonzero(is_annotation)[::-1].tolist()
    return (
        rows,
        {row: int(operator[row]) for row in rows},
        {int(operator[row]): row for row in annotations if operator[row] != NONE},
    )


def _named(trace: Trace, is_wanted: Callable[[str], Any]) -> NDArray[np.bool_]:
    return np.array([bool(is_wanted(name)) for name in trace.names] or [False])


def _describe(args: dict[str, Any], labels: list[str]) -> Collective | None:
    """Return the collective that an event's ``args`` and ``labels`` name; None if they name none.

    ``labels`` are the names of the backend's annotation (if there is one) and of the event itself.
    """
    annotated = [match for label in labels if (match := _ANNOTATION.fullmatch(label))]
    names = [str(args.get("Collective name", "")), *(match[2] for match in annotated), labels[-1]]
    operation = next((known for name in names if (known := parse_operation(name))), None)
    if operation is None:
        return None
    shape = _SHAPE.search(labels[-1])
    group = args.get("Process Group Name", args.get("Process Group ID"))
    written = args.get("dtype", "")
    return Collective(
        operation,
        backend=annotated[0][1] if annotated else "nccl" if "nccl" in labels[-1] else None,
        group=None if group in (None, "") else str(group),
        group_size=_positive(args.get("Group size")),
        ranks=_ranks(args),
        in_bytes=_bytes(args, "In msg nelems") if written else _input_bytes(args),
        out_bytes=_bytes(args, "Out msg nelems"),
        element_type=_element(args),
        sequence=_number(args.get("Seq")),
        algorithm=shape[1].lower() if shape else None,
        protocol=shape[2].lower() if shape else None,
    )


def _element(args: dict[str, Any]) -> str | None:
    if isinstance(written := args.get("dtype"), str) and written:
        return element_type(written)
    inputs = args.get("Input type")
    types = {
        element_type(spelling)
        for spelling in (inputs if isinstance(inputs, list) else [])
        if isinstance(spelling, str) and element_bytes(spelling)
    }
    return types.pop() if len(types) == 1 else None


def _bytes(args: dict[str, Any], key: str) -> int | None:
    count, size = _number(args.get(key)), element_bytes(str(args.get("dtype", "")))
    return None if count is None or size is None else count * size


def _input_bytes(args: dict[str, Any]) -> int | None:
    shapes, types = args.get("Input Dims"), args.get("Input type")
    if not isinstance(shapes, list) or not isinstance(types, list) or len(shapes) != len(types):
        return None
    sizes = [
        (count_elements(shape), element_bytes(str(written)))
        for shape, written in zip(shapes, types, strict=True)
        if shape != [] or element_bytes(str(written))
    ]
    if not sizes or any(count is None or size is None for count, size in sizes):
        return None
    return sum((count or 0) * (size or 0) for count, size in sizes)


def _ranks(args: dict[str, Any]) -> tuple[int, ...] | None:
    written = args.get("Process Group Ranks")
    if isinstance(written, str) and re.fullmatch(r"\[\d+(, ?\d+)*\]", written):
        return tuple(int(rank) for rank in re.findall(r"\d+", written))
    keys = ("Global rank start", "Global rank stride", "Group size")
    start, stride, size = (_number(args.get(key)) for key in keys)
    if start is None or not stride or size is None or size > _MAX_RANKS:
        return None
    return tuple(range(start, start + stride * size, stride))


def _number(value: Any) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20:
        value = int(value)
    return value if type(value) is int and value >= 0 else None


def _positive(value: Any) -> int | None:
    return _number(value) or None


def parse_operation(written: str) -> str | None:
    """Return the normalised name of an operation; None if it is no collective (e.g. ``wait``)."""
    letters = re.sub(r"[^a-z]", "", written.lower())
    # In this order, because reduce_scatter contains reduce and scatter.
    for operation in _OPERATIONS:
        if operation.replace("_", "") in letters:
            return operation
    return None


_TYPES: Final[dict[str, tuple[int, str]]] = {
    "bool": (1, "bool"),
    "uint8": (1, "byte,unsigned char,uint8_t"),
    "int8": (1, "char,signed char,int8_t"),
    "int16": (2, "short,short int,int16_t"),
    "int32": (4, "int,int32_t"),
    "int64": (8, "long,long int,long long,int64_t"),
    "uint16": (2, "unsigned short"),
    "uint32": (4, "unsigned int"),
    "uint64": (8, "unsigned long"),
    "float16": (2, "half"),
    "bfloat16": (2, ""),
    "float32": (4, "float"),
    "float64": (8, "double"),
    "complex32": (4, "complexhalf,complex<half>"),
    "complex64": (8, "complexfloat,complex<float>"),
    "complex128": (16, "complexdouble,complex<double>"),
    "float8_e5m2": (1, ""),
    "float8_e4m3fn": (1, ""),
    "float8_e5m2fnuz": (1, ""),
    "float8_e4m3fnuz": (1, ""),
    "float8_e8m0fnu": (1, ""),
}
_NAMES: Final = {
    spelling: name
    for name, (_, others) in _TYPES.items()
    for spelling in (name, *others.split(","))
    if spelling
}


def element_type(written: str) -> str:
    """Return torch's name of an element type (``float32``); unknown types remain unchanged."""
    return _NAMES.get(written.lower().replace("c10::", ""), written)


def element_bytes(written: str) -> int | None:
    """Return the size of one element in bytes; None if the element type is not known."""
    known = _TYPES.get(element_type(written))
    return known[0] if known else None


def count_elements(shape: Any) -> int | None:
    """Return the number of elements of a shape or nested list of shapes; None if it is neither."""
    if not isinstance(shape, list):
        return None
    if all(type(size) is int for size in shape):
        return prod(shape) if all(size >= 0 for size in shape) else None
    counts = [count_elements(inner) for inner in shape]
    return sum(inner for inner in counts if inner is not None) if None not in counts else None
