"""Of how many operations is the graph of a backward pass, and for how many weights?"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names
from otel_mlperf.foreign_errors import raise_foreign
from otel_mlperf.recorder.core.faults import internal_error
from otel_mlperf.recorder.instruments.costly_settings import read_costly_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_mlperf.recorder.instruments.cells import Cells

COUNTED: Final = (2, 20, 200)
"""Backward passes whose operations are counted: the first one may be another."""
MOST: Final = 20_000
"""Nobody asks for more, and each takes 1 µs to count, where a GPU is used 1.6."""
_SELECT: Final = "SelectBackward0"
_WEIGHT: Final = "torch::autograd::AccumulateGrad"
_PRODUCT: Final = "AddmmBackward0"
_PRODUCTS: Final = (_PRODUCT, "MmBackward0")
_PART: Final = "UnbindBackward0"
_SLICE: Final = "SliceBackward0"
_HOPS: Final = 3
"""Views and a sum between the product of a whole sequence and its parts."""
_OFTEN: Final = 8
"""Uses of a weight in one graph from which on it is used in a loop: ties of weights are fewer."""
_LOOPED_WEIGHTS: Final = 2
"""Weights that a layer of torch's own RNN uses at each time: the matrix of the state and a bias."""


def nodes_behind(tensors: Any) -> set[Any]:
    """The nodes of autograd's graph behind a tensor or several, up to ``MOST``."""
    given = tensors if isinstance(tensors, (tuple, list)) else [tensors]
    waiting = [getattr(tensor, "grad_fn", None) for tensor in given]
    seen: set[Any] = set()
    while waiting and len(seen) < MOST:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [above for above, _ in node.next_functions]
    return seen


def count_operations(nodes: set[Any]) -> dict[names.Metric, int]:
    """By metric what is among the nodes of a graph.

    All of them, a part that was compiled is one; those that take one element out along
    a dimension, ``x[:, t]``; and those at which a gradient arrives: one for each weight, however
    often it is used. These are not told where it is torch's own RNN that goes through time.
    """
    kinds = [node.name() for node in nodes]
    size = {names.GRAPH_NODES: len(kinds), names.GRAPH_SELECTS: kinds.count(_SELECT)}
    is_rnn = _is_rnn(nodes, kinds)
    return size if is_rnn else size | {names.GRAPH_WEIGHTS: kinds.count(_WEIGHT)}


def _is_rnn(nodes: set[Any], kinds: list[str]) -> bool:
    """Return whether the only loop in the graph is that of torch's own RNN.

    It multiplies the whole sequence at once and takes the parts of that product, or slices packed
    sequences; at each time it uses the weights of the state alone, half of those that it has. A
    cell in a loop of Python uses those of the input there, too.
    """
    looped = _count_looped_weights(nodes)
    if not looped:
        return False
    if 2 * kinds.count(_SLICE) >= kinds.count(_PRODUCT) and 2 * looped <= kinds.count(_WEIGHT):
        return True
    parts = sum(_is_of_product(node) for node in nodes if node.name() == _PART)
    return 0 < looped <= _LOOPED_WEIGHTS * parts


def _is_of_product(part: Any) -> bool:
    """Return whether what is taken apart is a product of matrices."""
    node = part
    for _ in range(_HOPS):
        node = node.next_functions[0][0] if node.next_functions else None
        if node is None:
            return False
        if node.name() in _PRODUCTS:
            return True
    return False


def _count_looped_weights(nodes: set[Any]) -> int:
    """Count the weights that are used often."""
    uses = Counter(above for node in nodes for above, _ in node.next_functions if above is not None)
    return sum(count >= _OFTEN for node, count in uses.items() if node.name() == _WEIGHT)


def look_at_pass(kept: dict[type, Any], cells: Cells, tensors: Any) -> None:
    """Count the operations of the backward pass that is about to start, if it is its turn.

    Args:
        kept: of the recorder.
        cells: of the recorder.
        tensors: that the pass starts at.
    """
    passes = kept[_Passes] = kept.get(_Passes, 0) + 1
    if passes in COUNTED:
        tell_size(tensors, cells)


class _Passes:
    """The key of the number of passes of one recording."""


def tell_size(tensors: Any, cells: Cells) -> None:
    """Counts them, and writes the numbers for the agent to read, with what makes the pass longer.

    Args:
        tensors: that the pass begins at.
        cells: of the recorder.
    """
    nodes = nodes_behind(tensors)
    _tell(count_operations(nodes), cells)
    try:
        settings = read_costly_settings(nodes)
    except Exception as error:  # noqa: BLE001 - nodes of another torch may say other things
        raise_foreign(error)
        internal_error(error)
        return
    _tell(settings, cells)


def _tell(values: Mapping[names.Metric, int], cells: Cells) -> None:
    for metric, value in values.items():
        cells.set(metric.name, metric.unit, value)
