"""Size of the autograd graph of a backward pass, and settings of PyTorch that slow the pass."""

from __future__ import annotations

import math
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
"""Names of the two matrices in nodes of matrix products; only shapes and strides are read."""
_PRODUCT_WEIGHT: Final = "TBackward0"
"""Node of the transposed weight in ``torch.nn.functional.linear``."""
_SMALLEST: Final = 128
"""Minimum rows and columns of counted products: smaller ones are memory-bound, so that another
precision would not make them faster.
"""
_COMPUTING: Final = (*_FACTORS, "BmmBackward0", "BaddbmmBackward0", "ConvolutionBackward0")
_TABLE: Final = "EmbeddingBackward0"
_WEIGHT: Final = "torch::autograd::AccumulateGrad"
_EXACT: Final = "highest"
"""Precision setting with which float32 products are computed in float32, not in TF32."""


def read_costly_settings(nodes: Iterable[Any]) -> dict[names.Metric, float]:
    """Return the values of settings that slow a backward pass, by metric.

    These are: whether anomaly detection is on (0 or 1), the share of float64 in the products of
    ``nodes``, the share of unused embedding rows, and the FLOPs that ``nodes`` compute in float32
    (only with CUDA and a known precision setting). The result is empty without torch.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    found: dict[names.Metric, float] = {names.AUTOGRAD_ANOMALY: int(torch.is_anomaly_enabled())}
    # Zero for most models: stored only if it is more, because each metric is a series.
    if double := double_share(nodes):
        found[names.GRAPH_DOUBLE] = double
    if unused := unused_share(nodes):
        found[names.GRAPH_UNUSED_ROWS] = unused
    if torch.cuda.is_initialized() and (precision := _precision(torch)):
        found[names.GRAPH_FLOAT32] = count_float32(nodes) if precision == _EXACT else 0
    return found


def double_share(nodes: Iterable[Any]) -> float:
    """Return the share of float64 in the matrix products and convolutions of a graph."""
    results = [_result(node) for node in nodes if node.name() in _COMPUTING]
    types = [str(result.dtype) for result in results if result is not None]
    return types.count("torch.float64") / len(types) if types else 0.0


def unused_share(nodes: Iterable[Any]) -> float:
    """Return the share of a graph's weights that are unused rows of tables with dense gradients.

    A pass uses at most one row for each row of the result, so the share is a lower bound. Tables
    with another use do not count: an output layer with the same weight uses all rows. Saved tensors
    are not read, because hooks could compute them again.
    """
    uses = _count_uses(nodes)
    of_kind = {kind: [node for node in nodes if node.name() == kind] for kind in (_WEIGHT, _TABLE)}
    trained = sum(int(node.variable.numel()) for node in of_kind[_WEIGHT])
    unused = sum(_unused(one) for one in of_kind[_TABLE] if uses[one.next_functions[0][0]] == 1)
    return unused / trained if trained else 0.0


def _count_uses(nodes: Iterable[Any]) -> Counter[Any]:
    """Return how many nodes of a graph use the result of each node."""
    return Counter(above for node in nodes for above, _ in node.next_functions if above is not None)


def _unused(table: Any) -> int:
    """Return the elements of an embedding table in rows without a use; 0 for sparse gradients."""
    result = _result(table)
    if result is None or table._saved_sparse:
        return 0
    *looked_up, width = (int(size) for size in result.shape)
    rows = int(table._saved_weight_sym_argsize_0)
    return max(0, rows - math.prod(looked_up)) * width


def _result(node: Any) -> Any:
    """Return shape and type of the result of a node's operation; None in an older torch."""
    return next(iter(getattr(node, "_input_metadata", None) or ()), None)


def count_float32(nodes: Iterable[Any], device: str = "cuda") -> int:
    """Return the FLOPs of float32 matrix products on a type of device, forward and backward.

    A product of matrices of m·k and k·n elements counts 2·m·k·n FLOPs, and the same for each of the
    two matrices that requires a gradient. Sparse and small matrices, batched products and
    convolutions are not counted. A matrix that is distributed over ranks (DTensor) counts as a
    whole.
    """
    return sum(_operations(node, device) for node in nodes if node.name() in _FACTORS)


def _operations(node: Any, device: str) -> int:
    result = _result(node)
    if result is None or result.device.type != device or str(result.dtype) != "torch.float32":
        return 0
    first, second = _FACTORS[node.name()]
    above = [function for function, _ in node.next_functions[-2:]]
    # A sparse matrix has no saved strides. Nor has a dense one without a gradient, which is
    # recognised by the node of a linear layer.
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
    """Return the precision setting; an empty text if torch rejects it as a mix of old and new."""
    try:
        return str(torch.get_float32_matmul_precision())
    except RuntimeError:
        return ""


COUNTED: Final = (2, 20, 200)
"""Numbers of the backward passes that are examined, not the first, which is often atypical."""
MOST: Final = 20_000
"""Maximum number of counted nodes; each costs 1 µs, with a GPU 1.6 µs."""
_SELECT: Final = "SelectBackward0"
_PRODUCT: Final = "AddmmBackward0"
_PRODUCTS: Final = (_PRODUCT, "MmBackward0")
_PART: Final = "UnbindBackward0"
_SLICE: Final = "SliceBackward0"
_HOPS: Final = 3
"""Maximum number of nodes (views, a sum) between the product of a whole sequence and its parts."""
_OFTEN: Final = 8
"""Minimum number of uses of a weight that indicates a Python loop; tied weights have fewer."""
_LOOPED_WEIGHTS: Final = 2
"""Number of weights that a layer of ``torch.nn.RNN`` uses at each time step: matrix and bias."""


def nodes_behind(tensors: Any) -> set[Any]:
    """Return the nodes of the autograd graph of one or several tensors, at most ``MOST``."""
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

    * All nodes; a compiled part is one node.
    * Nodes that select an element along a dimension (``x[:, t]``).
    * Nodes that accumulate a gradient, one for each weight. Omitted if the only loop in the graph
      is that of ``torch.nn.RNN``.
    """
    kinds = [node.name() for node in nodes]
    size = {names.GRAPH_NODES: len(kinds), names.GRAPH_SELECTS: kinds.count(_SELECT)}
    is_rnn = _is_rnn(nodes, kinds)
    return size if is_rnn else size | {names.GRAPH_WEIGHTS: kinds.count(_WEIGHT)}


def _is_rnn(nodes: set[Any], kinds: list[str]) -> bool:
    """Return whether the only loop in the graph is that of ``torch.nn.RNN``.

    ``torch.nn.RNN`` multiplies the whole sequence at once and unbinds the product, or slices packed
    sequences. At each time step it uses only the weights of the state, i.e. half of all weights. A
    cell in a Python loop also uses the weights of the input at each time step.
    """
    looped = _count_looped_weights(nodes)
    if not looped:
        return False
    if 2 * kinds.count(_SLICE) >= kinds.count(_PRODUCT) and 2 * looped <= kinds.count(_WEIGHT):
        return True
    parts = sum(_is_of_product(node) for node in nodes if node.name() == _PART)
    return 0 < looped <= _LOOPED_WEIGHTS * parts


def _is_of_product(part: Any) -> bool:
    node = part
    for _ in range(_HOPS):
        node = node.next_functions[0][0] if node.next_functions else None
        if node is None:
            return False
        if node.name() in _PRODUCTS:
            return True
    return False


def _count_looped_weights(nodes: set[Any]) -> int:
    uses = _count_uses(nodes)
    return sum(count >= _OFTEN for node, count in uses.items() if node.name() == _WEIGHT)


def examine_pass(kept: dict[type, Any], cells: Cells, tensors: Any) -> None:
    """Count a backward pass that is about to start; if the count is in ``COUNTED``, store the size.

    Args:
        kept: the recorder's state of upper layers, by class.
        cells: the recorder's cells.
        tensors: tensors at which the pass starts.
    """
    passes = kept[_Passes] = kept.get(_Passes, 0) + 1
    if passes in COUNTED:
        store_size(tensors, cells)
        if calls := kept.get(CheckpointCalls, 0):
            _store({names.GRAPH_CHECKPOINTS: calls / passes}, cells)


class _Passes:
    """Key of the number of backward passes in the recorder's ``kept`` state."""


class CheckpointCalls:
    """Key of the number of calls of ``torch.utils.checkpoint`` in the ``kept`` state."""


def store_size(tensors: Any, cells: Cells) -> None:
    """Store node counts and slowing settings of a backward pass in cells, for the agent.

    Args:
        tensors: tensors at which the pass starts.
        cells: the recorder's cells.
    """
    nodes = nodes_behind(tensors)
    _store(count_operations(nodes), cells)
    try:
        settings = read_costly_settings(nodes)
    except Exception as error:  # noqa: BLE001 - nodes of other torch versions may differ
        raise_foreign(error)
        internal_error(error)
        return
    _store(settings, cells)


def _store(values: Mapping[names.Metric, float], cells: Cells) -> None:
    for metric, value in values.items():
        cells.set(metric.name, metric.unit, value)
