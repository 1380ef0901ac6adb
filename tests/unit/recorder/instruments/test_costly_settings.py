"""Is it seen what settings make a backward pass longer?"""

from __future__ import annotations

import pytest
import torch

from otel_mlperf import names
from otel_mlperf.recorder.instruments.costly_settings import count_float32, read_costly_settings


def nodes_of(tensor):
    """Of a graph, each once."""
    waiting, seen = [tensor.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [above for above, _ in node.next_functions]
    return seen


def test_operations_of_products_are_those_of_their_shapes():
    """A batch of 6 × 5 rows through two layers; its own gradient nobody asks for."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    nodes = nodes_of(model(torch.randn(6, 5, 8)).sum())

    forward = [2 * 30 * 8 * 16, 2 * 30 * 16 * 4]
    assert count_float32(nodes, "cpu") == 2 * forward[0] + 3 * forward[1]
    assert count_float32(nodes) == 0


def test_a_product_of_two_matrices_has_two_gradients():
    """As many operations for each, also after the backward pass."""
    a, b = torch.randn(3, 4, requires_grad=True), torch.randn(4, 5, requires_grad=True)
    loss = (a @ b).sum()
    loss.backward()

    assert count_float32(nodes_of(loss), "cpu") == 3 * 2 * 3 * 4 * 5


def test_smaller_types_do_not_count():
    """Under autocast the products are in bfloat16."""
    model = torch.nn.Linear(8, 16)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(torch.randn(6, 8)).sum()

    assert count_float32(nodes_of(loss), "cpu") == 0


@pytest.mark.parametrize("is_on", [False, True])
@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_anomaly_detection_is_seen(is_on):
    """Where it is on around the pass."""
    with torch.autograd.set_detect_anomaly(is_on):
        assert read_costly_settings([]) == {names.AUTOGRAD_ANOMALY: int(is_on)}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("precision", "operations"), [("highest", 2 * 2 * 6 * 8 * 16), ("high", None)]
)
def test_products_of_a_device_count_without_tf32(precision, operations):
    """By the precision that is set."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        nodes = nodes_of(torch.nn.Linear(8, 16).cuda()(torch.randn(6, 8, device="cuda")).sum())
        assert read_costly_settings(nodes).get(names.GRAPH_FLOAT32) == operations
    finally:
        torch.set_float32_matmul_precision(before)
