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
"""What nodes of products call both matrices; of these only shapes and strides are asked."""
_PRODUCT_WEIGHT: Final = "TBackward0"
"""What torch.nn.functional.linear does with its weight before the product."""
_SMALLEST: Final = 128
"""Rows or columns below which a product waits for memory: another type makes it no faster."""
_EXACT: Final = "highest"
"""Precision of products at which those of float32 are made in float32."""


def read_costly_settings(nodes: Iterable[Any]) -> dict[names.Metric, int]:
    """By metric what costs time in a pass with these nodes: absent where it is not known."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    found = {names.AUTOGRAD_ANOMALY: int(torch.is_anomaly_enabled())}
    if torch.cuda.is_initialized() and (precision := _precision(torch)):
        found[names.GRAPH_FLOAT32] = count_float32(nodes) if precision == _EXACT else 0
    return found


def count_float32(nodes: Iterable[Any], device: str = "cuda") -> int:
    """Floating point operations of products of float32 on such a device, forward and backward.

    Of a matrix of m rows and k columns with one of n columns 2·m·k·n, and as many for each of the
    two that has a gradient. Sparse matrices, small ones, products of batches and convolutions are
    not among them; of a matrix that several ranks share (DTensor) the whole is.
    """
    return sum(_operations(node, device) for node in nodes if node.name() in _FACTORS)


def _operations(node: Any, device: str) -> int:
    (result, *_) = getattr(node, "_input_metadata", None) or (None,)
    if result is None or result.device.type != device or str(result.dtype) != "torch.float32":
        return 0
    first, second = _FACTORS[node.name()]
    above = [function for function, _ in node.next_functions[-2:]]
    # A sparse one has no strides, nor has one without a gradient: there a linear layer is known.
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
    """As the program has set it; empty: in the old way and in the new one, which torch refuses."""
    try:
        return str(torch.get_float32_matmul_precision())
    except RuntimeError:
        return ""


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
