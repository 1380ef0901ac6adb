"""Size of the graph of a backward pass, and settings of PyTorch that make the pass slower."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names
from otel_mlperf.foreign_errors import raise_foreign
from otel_mlperf.recorder.core.faults import internal_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from otel_mlperf.recorder.instruments.cells import Cells


_FACTORS: Final = {"MmBackward0": ("self", "mat2"), "AddmmBackward0": ("mat1", "mat2")}
"""Names of both matrices in nodes of products; only their shapes and strides are read."""
_PRODUCT_WEIGHT: Final = "TBackward0"
"""The operation of torch.nn.functional.linear on its weight before the product."""
_SMALLEST: Final = 128
"""Rows or columns below which a product is limited by memory: another type makes it no faster."""
_EXACT: Final = "highest"
"""Precision setting with which products of float32 are computed in float32."""


def read_costly_settings(nodes: Iterable[Any]) -> dict[names.Metric, int]:
    """Return what makes a pass with these nodes slow, by metric; unknown metrics are absent."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    found = {names.AUTOGRAD_ANOMALY: int(torch.is_anomaly_enabled())}
    if torch.cuda.is_initialized() and (precision := _precision(torch)):
        found[names.GRAPH_FLOAT32] = count_float32(nodes) if precision == _EXACT else 0
    return found


def count_float32(nodes: Iterable[Any], device: str = "cuda") -> int:
    """Return the operations of float32 products on such a device, forward and backward.

    A product of a matrix of m rows and k columns with one of n columns counts 2·m·k·n floating
    point operations, and as many for each of the two matrices that has a gradient. Sparse matrices,
    small ones, products of batches and convolutions are not counted. A matrix that several ranks
    share (DTensor) counts as a whole.
    """
    return sum(_operations(node, device) for node in nodes if node.name() in _FACTORS)


def _operations(node: Any, device: str) -> int:
    (result, *_) = getattr(node, "_input_metadata", None) or (None,)
    if result is None or result.device.type != device or str(result.dtype) != "torch.float32":
        return 0
    first, second = _FACTORS[node.name()]
    above = [function for function, _ in node.next_functions[-2:]]
    # A sparse matrix has no strides, nor has one without a gradient: then a linear layer decides.
    is_layer = above[1] is not None and above[1].name() == _PRODUCT_WEIGHT
    if not is_layer and not getattr(node, f"_saved_{first}_sym_strides"):
        return 0
    rows, inner = getattr(node, f"_saved_{first}_sym_sizes")
    _, columns = getattr(node, f"_saved_{second}_sym_sizes")
    if min(rows, inner, columns) < _SMALLEST:
        return 0
    gradients = sum(function is not None for function in above)
    return int(2 * rows * inner * columns * (1 + gradients))


def _precision(torch: Any) -> str:
    """Return the program's setting; empty: a mix of old and new settings, which torch refuses."""
    try:
        return str(torch.get_float32_matmul_precision())
    except RuntimeError:
        return ""


COUNTED: Final = (2, 20, 200)
"""Numbers of the backward passes that are counted: the first one may be atypical."""
MOST: Final = 20_000
"""Maximum number of counted nodes: more are never needed, and each costs 1 µs, with a GPU 1.6 µs.
"""
_SELECT: Final = "SelectBackward0"
_WEIGHT: Final = "torch::autograd::AccumulateGrad"
_PRODUCT: Final = "AddmmBackward0"
_PRODUCTS: Final = (_PRODUCT, "MmBackward0")
_PART: Final = "UnbindBackward0"
_SLICE: Final = "SliceBackward0"
_HOPS: Final = 3
"""Views and a sum between the product of a whole sequence and its parts."""
_OFTEN: Final = 8
"""Minimum number of uses of a weight in one graph that indicates a loop: tied weights have fewer.
"""
_LOOPED_WEIGHTS: Final = 2
"""Weights that a layer of torch's own RNN uses at each time: the state's matrix and a bias."""


def nodes_behind(tensors: Any) -> set[Any]:
    """Return the nodes of autograd's graph behind one or several tensors, up to ``MOST``."""
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
    """Return counts of the nodes of a graph, by metric.

    Counted are all nodes, where a compiled part is one node; nodes that select one element along a
    dimension, ``x[:, t]``; and nodes at which a gradient arrives: one for each weight, however
    often it is used. The last count is omitted where torch's own RNN goes through time.
    """
    kinds = [node.name() for node in nodes]
    size = {names.GRAPH_NODES: len(kinds), names.GRAPH_SELECTS: kinds.count(_SELECT)}
    is_rnn = _is_rnn(nodes, kinds)
    return size if is_rnn else size | {names.GRAPH_WEIGHTS: kinds.count(_WEIGHT)}


def _is_rnn(nodes: set[Any], kinds: list[str]) -> bool:
    """Return whether the only loop in the graph is that of torch's own RNN.

    That RNN multiplies the whole sequence at once and unbinds the product, or slices packed
    sequences. At each time it uses only the weights of the state, half of its weights. A cell in a
    Python loop uses those of the input there, too.
    """
    looped = _count_looped_weights(nodes)
    if not looped:
        return False
    if 2 * kinds.count(_SLICE) >= kinds.count(_PRODUCT) and 2 * looped <= kinds.count(_WEIGHT):
        return True
    parts = sum(_is_of_product(node) for node in nodes if node.name() == _PART)
    return 0 < looped <= _LOOPED_WEIGHTS * parts


def _is_of_product(part: Any) -> bool:
    """Return whether the tensor that is taken apart is a product of matrices."""
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
        kept: the recorder's state of upper layers.
        cells: the recorder's cells.
        tensors: tensors at which the pass starts.
    """
    passes = kept[_Passes] = kept.get(_Passes, 0) + 1
    if passes in COUNTED:
        tell_size(tensors, cells)


class _Passes:
    """Key for the number of passes of one recording."""


def tell_size(tensors: Any, cells: Cells) -> None:
    """Count the nodes, and store the counts and costly settings for the agent.

    Args:
        tensors: tensors at which the pass starts.
        cells: the recorder's cells.
    """
    nodes = nodes_behind(tensors)
    _tell(count_operations(nodes), cells)
    try:
        settings = read_costly_settings(nodes)
    except Exception as error:  # noqa: BLE001 - nodes of other torch versions may differ
        raise_foreign(error)
        internal_error(error)
        return
    _tell(settings, cells)


def _tell(values: Mapping[names.Metric, int], cells: Cells) -> None:
    for metric, value in values.items():
        cells.set(metric.name, metric.unit, value)
