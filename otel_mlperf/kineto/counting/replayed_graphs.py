"""Operators of replayed CUDA graphs, matched with a trace of the graphs' capture.

The records of a replay (one launch of a graph) do not contain the operators that requested the
work. A replay matches a capture if their pieces of work agree one by one: the same number of
pieces, copies in the same positions, and kernels with the same names. Pieces are ordered by the
number of their graph node if the trace records it (CUDA 12 and newer), otherwise by start. If no
capture matches, or if matching captures name different operators, no operator is reported, because
a guess would look like a recorded fact.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from otel_mlperf.kineto.counting.device_work import WorkKind, find_work
from otel_mlperf.kineto.counting.unanswered_launches import KINDS, launch_kinds
from otel_mlperf.kineto.counting.window_losses import GRAPH
from otel_mlperf.kineto.linking.threads import rows_by
from otel_mlperf.kineto.reading.trace_reader import read_details
from otel_mlperf.kineto.trace_events import NONE
from otel_mlperf.store.window_facts import CapturedWork

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from otel_mlperf.kineto.counting.captured_graphs import CapturedGraphs, GraphNode
    from otel_mlperf.kineto.counting.device_work import Work
    from otel_mlperf.kineto.linking.linked_events import Links
    from otel_mlperf.kineto.trace_events import Trace

NOT_CAPTURED: Final = "belong to a graph that matches no capture"
CONTRADICTED: Final = "belong to a graph that matches several captures with different operators"
NO_OPERATOR: Final = "were captured outside operators"
_NODE: Final = "graph node id"
_Pieces = tuple[tuple[bool, str], ...]
"""For each piece of work of a replay: whether it is a copy, and its name."""


class ReplayedGraphs(NamedTuple):
    """Operators of the work of replayed CUDA graphs, as known from the graphs' capture."""

    facts: CapturedWork | None
    """Number of matched pieces of work; None if ``operator`` was read from stored events."""
    operator: NDArray[np.int32]
    """Index into ``operators`` for each event of the trace; NONE if not known or not of a graph."""
    operators: list[str]


def match_replays(trace: Trace, links: Links, captured: CapturedGraphs) -> ReplayedGraphs:
    """Return the operators of the work that replayed graphs ran, by comparison with ``captured``.

    Raises:
        TraceError: the trace file cannot be read again.
    """
    work = find_work(trace)
    call = links.launch[work.rows]
    kinds = np.append(launch_kinds(trace), np.uint8(len(KINDS)))
    mine = np.flatnonzero(kinds[call] == KINDS.index(GRAPH))
    mine = mine[_in_order(trace, work, mine)]
    operator = np.full(len(trace.events), NONE, np.int32)
    number: dict[str, int] = {}
    matches: dict[_Pieces, list[str] | str] = {}
    unmatched: Counter[str] = Counter()
    for pieces in rows_by(call, mine).values():
        names = (trace.names[at] for at in trace.events.name[work.rows[pieces]].tolist())
        key = tuple(zip((work.kind[pieces] == WorkKind.COPY).tolist(), names, strict=True))
        if key not in matches:
            matches[key] = _operators_of(key, captured.graphs)
        found = matches[key]
        if isinstance(found, str):
            unmatched[found] += len(pieces)
            continue
        unmatched[NO_OPERATOR] += found.count("")
        operator[work.rows[pieces]] = [
            number.setdefault(name, len(number)) if name else NONE for name in found
        ]
    facts = CapturedWork(
        capture=captured.trace,
        captures=len(captured.graphs),
        work=len(mine),
        matched=int((operator != NONE).sum()),
        unmatched={reason: count for reason, count in unmatched.items() if count},
    )
    return ReplayedGraphs(facts, operator, list(number))


def _in_order(trace: Trace, work: Work, mine: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the indices that sort ``mine``: by node number if all have one, else by start."""
    rows = work.rows[mine]
    details = read_details(trace, rows.tolist()) if len(rows) else {}
    nodes = [details[row].get(_NODE) for row in rows.tolist()]
    # 0 means that the work is outside of graphs, or that the profiler records no node numbers.
    if all(type(node) is int and node > 0 for node in nodes):
        return np.argsort(np.array(nodes, np.uint64), kind="stable")
    return np.argsort(work.start_ns[mine], kind="stable")


def _operators_of(pieces: _Pieces, graphs: Sequence[tuple[GraphNode, ...]]) -> list[str] | str:
    """Return the operator of each piece, or the reason why the operators are not known."""
    fitting = {
        tuple(node.operator for node in graph)
        for graph in graphs
        if len(graph) == len(pieces) and all(map(_fits, graph, pieces))
    }
    if not fitting:
        return NOT_CAPTURED
    return list(fitting.pop()) if len(fitting) == 1 else CONTRADICTED


def _fits(node: GraphNode, piece: tuple[bool, str]) -> bool:
    is_copy, name = piece
    return name in node.names if node.is_kernel else is_copy
