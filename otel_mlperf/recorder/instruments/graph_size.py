"""Of how many operations is the graph of a backward pass, and for how many weights?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_mlperf import names

if TYPE_CHECKING:
    from otel_mlperf.recorder.instruments.cells import Cells

COUNTED: Final = (2, 20, 200)
"""Backward passes whose operations are counted: the first one may be another."""
MOST: Final = 20_000
"""Nobody asks for more, and each takes 0.8 µs to count."""
_SELECT: Final = "SelectBackward0"
_WEIGHT: Final = "torch::autograd::AccumulateGrad"
_PRODUCT: Final = "AddmmBackward0"
_PART: Final = "UnbindBackward0"
_SLICE: Final = "SliceBackward0"
_METRICS: Final = (names.GRAPH_NODES, names.GRAPH_SELECTS, names.GRAPH_WEIGHTS)


class GraphSize(NamedTuple):
    """What is in a graph."""

    nodes: int
    selects: int
    """Of them, those that take one element out along a dimension: ``x[:, t]``."""
    weights: int
    """Of them, those at which a gradient arrives: one for each weight, however often it is used.

    0 where it is torch's own RNN that goes through time.
    """


def count_operations(tensors: Any) -> GraphSize:
    """The nodes of autograd's graph behind a tensor or several, up to ``MOST``.

    A part that was compiled is one of them.
    """
    given = tensors if isinstance(tensors, (tuple, list)) else [tensors]
    waiting = [getattr(tensor, "grad_fn", None) for tensor in given]
    seen: set[Any] = set()
    while waiting and len(seen) < MOST:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [above for above, _ in node.next_functions]
    kinds = [node.name() for node in seen]
    weights = 0 if _is_rnn(kinds) else kinds.count(_WEIGHT)
    return GraphSize(len(seen), kinds.count(_SELECT), weights)


def _is_rnn(kinds: list[str]) -> bool:
    """Whether torch's own loop is in it: it parts its input at once, or slices packed sequences."""
    products = kinds.count(_PRODUCT)
    return _PART in kinds or 2 * kinds.count(_SLICE) >= products > 0


def tell_size(tensors: Any, cells: Cells) -> None:
    """Counts them, and writes the numbers for the agent to read."""
    size = count_operations(tensors)
    for metric, count in zip(_METRICS, size, strict=True):
        if count or metric is not names.GRAPH_WEIGHTS:
            cells.set(metric.name, metric.unit, count)
