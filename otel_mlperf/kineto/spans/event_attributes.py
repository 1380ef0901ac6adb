"""Span attributes of trace events.

Constant attributes are derived from name and category; numeric attributes are columns. All other
attributes are read from the ``args`` of an event, only for events that are sent as spans.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names
from otel_mlperf.kineto.counting.device_work import OTHER, REQUEST, describe_request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from otel_mlperf.kineto.linking.collectives import Collective
    from otel_mlperf.kineto.trace_events import Trace

_COPY_KIND = re.compile(r"^Memcpy (\S+)")
_LONGEST: Final = 1024
"""Maximum number of characters of a text, so that shapes of hundreds of tensors are cut."""
_DIMENSIONS: Final = 3
_PER_CENT: Final = 100


def span_category(category: str, *, is_device: bool) -> str:
    """Return the span's category (``kernel`` or ``operator``) for a category of Kineto."""
    return names.KERNEL if is_device or category.startswith("gpu_") else names.OPERATOR


def constant_attributes(
    name: str, category: str, problem: str = "", *, is_device: bool
) -> dict[str, Any]:
    """Return the attributes that all events of a name and category share.

    ``problem`` is the reason why events of the window are missing (empty if none are).
    """
    attributes: dict[str, Any] = {names.PROFILER_ACTIVITY: category}
    if problem:
        attributes[names.PROFILER_PROBLEM] = problem
    if is_device:
        attributes[names.ASYNCHRONOUS] = True
    kind = _COPY_KIND.match(name) if category in ("gpu_memcpy", "memcpy") else None
    if kind:
        attributes[names.MEMCPY_KIND] = kind[1]
    return attributes


def numbers(trace: Trace) -> dict[str, NDArray[Any]]:
    """Return the columns of numeric attributes, by name; NONE where an event has no value."""
    events = trace.events
    return {
        names.DEVICE_INDEX: events.device,
        names.STREAM_ID: events.stream,
        names.CORRELATION_ID: events.correlation,
        names.SEQUENCE_NUMBER: events.sequence,
        names.MEMCPY_SIZE: events.bytes,
    }


def own_attributes(name: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes in an event's ``args`` that are not numeric columns."""
    attributes = _details(args)
    if name == REQUEST:
        kind, size = describe_request(args)
        if kind != OTHER:
            attributes[names.MEMCPY_KIND] = kind.replace("2", "to")  # Like CUDA's "HtoD".
        if size is not None and "bytes" not in args:  # "bytes" is a column.
            attributes[names.MEMCPY_SIZE] = size
    return attributes


def _details(args: Mapping[str, Any]) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    for key, name in _WHOLE.items():
        if _is_whole(args.get(key)):
            attributes[name] = args[key]
    for key, name in _SIZES.items():
        size = args.get(key)
        if isinstance(size, list) and len(size) == _DIMENSIONS and all(map(_is_whole, size)):
            attributes[name] = size
    occupancy = args.get("est. achieved occupancy %")
    if isinstance(occupancy, int | float) and not isinstance(occupancy, bool):
        attributes[names.KERNEL_OCCUPANCY] = occupancy / _PER_CENT
    for key, name in _LISTS.items():
        if isinstance(args.get(key), list) and any(args[key]):
            attributes[name] = json.dumps(args[key], ensure_ascii=False)[:_LONGEST]
    return attributes


def collective_attributes(collective: Collective, duration_ns: int | None) -> dict[str, Any]:
    """Return the attributes of a collective; bus bandwidth only if ``duration_ns`` is given."""
    known: dict[str, Any] = {
        names.COLLECTIVE_OPERATION: collective.operation,
        names.COLLECTIVE_BACKEND: collective.backend,
        names.COLLECTIVE_GROUP: collective.group,
        names.COLLECTIVE_GROUP_SIZE: collective.group_size,
        names.COLLECTIVE_SIZE: collective.message_bytes,
        names.COLLECTIVE_TYPE: collective.element_type,
        names.COLLECTIVE_SEQUENCE: collective.sequence,
        names.COLLECTIVE_ALGORITHM: collective.algorithm,
    }
    if duration_ns and collective.bus_bytes is not None:
        known[names.COLLECTIVE_BUS_BANDWIDTH] = collective.bus_bytes * 1e9 / duration_ns
    return {name: value for name, value in known.items() if value is not None}


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_WHOLE: Final = {
    "registers per thread": names.KERNEL_REGISTERS,
    "shared memory": names.KERNEL_SHARED_MEMORY,
}
_SIZES: Final = {"grid": names.KERNEL_GRID, "block": names.KERNEL_BLOCK}
_LISTS: Final = {"Input Dims": names.INPUT_SHAPES, "Input type": names.INPUT_TYPES}
