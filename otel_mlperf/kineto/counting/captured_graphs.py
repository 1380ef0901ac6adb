"""Captured CUDA graphs: the operators and kernels of each graph, read from a trace of its capture.

Between the calls that start and end a capture, a launch runs nothing: it is recorded as a node of
the graph, in launch order. A launch that has a device record in the trace did run, so it is not a
node.

ROCm's calls name the kernel that they launch; CUDA's calls do not. With CUDA, the possible kernels
of a node are those that its operator launches elsewhere in the same trace, for example in the
warm-up rounds before the capture.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from otel_mlperf.kineto.counting.device_work import find_work
from otel_mlperf.kineto.counting.unanswered_launches import KINDS, find_captures, launch_kinds
from otel_mlperf.kineto.counting.window_losses import GRAPH, KERNEL
from otel_mlperf.kineto.linking.forest import Forest
from otel_mlperf.kineto.linking.link import link
from otel_mlperf.kineto.linking.linked_events import Role, find_roles
from otel_mlperf.kineto.linking.threads import Innermost
from otel_mlperf.kineto.reading.trace_reader import read_details, read_trace
from otel_mlperf.kineto.trace_events import NONE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from otel_mlperf.kineto.linking.linked_events import Links
    from otel_mlperf.kineto.trace_events import Trace

_KERNEL_NAME = "kernel"
"""Key in the ``args`` of ROCm's calls that contains the kernel's name."""


class GraphNode(NamedTuple):
    """One node of a captured CUDA graph: a launch that was recorded and did not run."""

    operator: str
    """Name of the innermost operator around the launch; empty if no operator is around it."""
    is_kernel: bool
    """Whether a kernel is launched; if false, a copy or memset, whose name is not known."""
    names: frozenset[str] = frozenset()
    """Possible names of the kernel; empty if they are not known."""


class CapturedGraphs(NamedTuple):
    """The captured graphs of a trace, in the order of their capture."""

    trace: str
    """File name of the trace of the capture."""
    graphs: list[tuple[GraphNode, ...]]


def read_captures(path: Path) -> CapturedGraphs:
    """Return the CUDA graphs that were captured while the trace at ``path`` was recorded.

    Raises:
        TraceError: no part of the trace can be read.
    """
    trace = read_trace(path)
    links = link(trace)
    rows, capture = _find_nodes(trace, links)
    nodes = list(_describe(trace, links, rows))
    graphs: dict[int, list[GraphNode]] = defaultdict(list)
    for begin, node in zip(capture.tolist(), nodes, strict=True):
        graphs[begin].append(node)
    return CapturedGraphs(path.name, [tuple(graph) for graph in graphs.values()])


def _find_nodes(trace: Trace, links: Links) -> tuple[NDArray[np.intp], NDArray[np.int32]]:
    kind_of = launch_kinds(trace)
    is_launch = (kind_of < len(KINDS)) & (kind_of != KINDS.index(GRAPH))
    has_run = np.zeros(len(is_launch) + 1, np.bool_)  # The last item is for NONE.
    has_run[links.launch] = True
    is_inner = (links.around != NONE) & is_launch[links.around]
    rows = np.flatnonzero(is_launch & ~has_run[:-1] & ~is_inner)
    rows = rows[np.argsort(trace.events.start_ns[rows], kind="stable")]
    # Launches of all threads count, because autograd's threads launch work for other captures.
    captures = find_captures(trace)
    capture = Innermost(captures.start_ns, captures.stop_ns).at(trace.events.start_ns[rows])
    return rows[capture != NONE], capture[capture != NONE]


def _describe(trace: Trace, links: Links, rows: NDArray[np.intp]) -> Iterator[GraphNode]:
    is_operator = find_roles(trace) == Role.OPERATOR
    above = Forest(links.parent).nearest(is_operator)
    kind_of, named = launch_kinds(trace), [trace.names[at] for at in trace.events.name[above]]
    details = read_details(trace, rows.tolist()) if len(rows) else {}
    seen = _seen_kernels(trace, links, above)
    for row in rows.tolist():
        operator = named[row] if above[row] != NONE else ""
        kernel_name = details[row].get(_KERNEL_NAME)
        names = (
            frozenset({kernel_name})
            if isinstance(kernel_name, str)
            else seen.get(operator, frozenset())
        )
        yield GraphNode(operator, bool(kind_of[row] == KINDS.index(KERNEL)), names)


def _seen_kernels(
    trace: Trace, links: Links, above: NDArray[np.int32]
) -> dict[str, frozenset[str]]:
    work = find_work(trace).rows
    owner = above[work]
    pairs = zip(trace.events.name[owner].tolist(), trace.events.name[work].tolist(), strict=True)
    seen: dict[str, set[str]] = defaultdict(set)
    for (operator, kernel), is_known in zip(pairs, (owner != NONE).tolist(), strict=True):
        if is_known:
            seen[trace.names[operator]].add(trace.names[kernel])
    return {operator: frozenset(kernels) for operator, kernels in seen.items()}
