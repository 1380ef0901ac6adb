"""Does a setting of PyTorch make a backward pass take longer than it must?"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names

if TYPE_CHECKING:
    from collections.abc import Iterable

_FACTORS: Final = {
    "MmBackward0": ("_saved_self_sym_sizes", "_saved_mat2_sym_sizes"),
    "AddmmBackward0": ("_saved_mat1_sym_sizes", "_saved_mat2_sym_sizes"),
}
"""What nodes of products say of the shapes of both matrices; the matrices are not touched."""
_EXACT: Final = "highest"
"""Precision of products at which those of float32 are made in float32."""


def read_costly_settings(nodes: Iterable[Any]) -> dict[names.Metric, int]:
    """By metric what costs time in a pass with these nodes: absent where it is not known."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    found = {names.AUTOGRAD_ANOMALY: int(torch.is_anomaly_enabled())}
    is_exact = torch.cuda.is_initialized() and _precision(torch) == _EXACT
    if is_exact and (operations := count_float32(nodes)):
        found[names.GRAPH_FLOAT32] = operations
    return found


def count_float32(nodes: Iterable[Any], device: str = "cuda") -> int:
    """Floating point operations of products of float32 on such a device, forward and backward.

    Of a matrix of m rows and k columns with one of n columns 2·m·k·n, and as many for each of the
    two that has a gradient. Products of batches and convolutions are not among them.
    """
    return sum(_operations(node, device) for node in nodes if node.name() in _FACTORS)


def _operations(node: Any, device: str) -> int:
    (result, *_) = getattr(node, "_input_metadata", None) or (None,)
    if result is None or result.device.type != device or str(result.dtype) != "torch.float32":
        return 0
    (rows, inner), (_, columns) = (getattr(node, sizes) for sizes in _FACTORS[node.name()])
    gradients = sum(above is not None for above, _ in node.next_functions[-2:])
    return int(2 * rows * inner * columns * (1 + gradients))


def _precision(torch: Any) -> str:
    try:
        return str(torch.get_float32_matmul_precision())
    except RuntimeError:
        return ""  # it was set in the old way and in the new one
