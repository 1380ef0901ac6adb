"""Settings that make a backward pass longer are detected."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
from cell_values import series

from otel_mlperf import names
from otel_mlperf.journal.layout import Word
from otel_mlperf.recorder.instruments.graph_size import (
    count_float32,
    double_share,
    nodes_behind,
    read_costly_settings,
    store_size,
    unused_share,
)


def gauges(recording):
    """What was told, by name."""
    return {name: value for (name, _), value in series(recording, "gauge").items()}


def on_a_device():
    """A node of a product of 200 × 300 by 300 × 400 numbers on a GPU."""
    result = SimpleNamespace(device=torch.device("cuda"), dtype=torch.float32)
    return SimpleNamespace(
        name=lambda: "MmBackward0", _input_metadata=(result,), next_functions=((1, 0), (None, 0)),
        _saved_self_sym_sizes=(200, 300), _saved_self_sym_strides=(300, 1),
        _saved_mat2_sym_sizes=(300, 400),
    )  # fmt: skip


@pytest.fixture
def precision(monkeypatch):
    """A torch that uses CUDA, and answers with what the dictionary says of its precision."""
    answers = {"is": "highest"}

    def asked():
        if answers["is"] is None:
            raise RuntimeError("set in the old way and in the new one")
        return answers["is"]

    faked = SimpleNamespace(
        is_anomaly_enabled=lambda: False, get_float32_matmul_precision=asked,
        cuda=SimpleNamespace(is_initialized=lambda: True),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch", faked)
    return answers


def test_operations_of_products_are_those_of_their_shapes():
    """A batch of 26 × 5 rows through two layers; its own gradient nobody asks for."""
    model = torch.nn.Sequential(
        torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 140)
    )
    nodes = nodes_behind(model(torch.randn(26, 5, 128)).sum())

    forward = [2 * 130 * 128 * 256, 2 * 130 * 256 * 140]
    assert count_float32(nodes, "cpu") == 2 * forward[0] + 3 * forward[1]
    assert count_float32(nodes) == 0


def test_a_product_of_two_matrices_has_two_gradients():
    """As many operations for each, also after the backward pass."""
    a, b = torch.randn(130, 140, requires_grad=True), torch.randn(140, 150, requires_grad=True)
    loss = (a @ b).sum()
    loss.backward()

    assert count_float32(nodes_behind(loss), "cpu") == 3 * 2 * 130 * 140 * 150


def test_what_gains_nothing_does_not_count():
    """Under autocast products are in bfloat16; thin ones wait for memory, sparse ones are few."""
    model, x = torch.nn.Linear(256, 256), torch.randn(256, 256, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        smaller = model(x).sum()
    thin = torch.nn.Linear(256, 16)(x).sum()
    sparse = (torch.eye(256).to_sparse() @ x).sum()

    for loss in (smaller, thin, sparse):
        assert count_float32(nodes_behind(loss), "cpu") == 0


def test_the_share_of_float64_is_that_of_the_products():
    """One of two layers, and a convolution in float32."""
    first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4).double()
    convolution = torch.nn.Conv1d(2, 2, 1)
    loss = second(first(convolution(torch.randn(3, 2, 4))).double()).sum()

    assert double_share(nodes_behind(loss)) == pytest.approx(1 / 3)
    assert double_share(nodes_behind((torch.ones(3, requires_grad=True) * 2).sum())) == 0.0


def test_rows_that_no_batch_can_have_used_are_unused():
    """Of 1,000 rows at most 12 are used; the other weights are 8 × 2 + 2."""
    table, layer = torch.nn.Embedding(1000, 8), torch.nn.Linear(8, 2)
    sparse = torch.nn.Embedding(1000, 8, sparse=True)
    rows = torch.randint(0, 1000, (4, 3))

    assert unused_share(nodes_behind(layer(table(rows)).sum())) == 988 * 8 / (8000 + 18)
    assert unused_share(nodes_behind(layer(sparse(rows)).sum())) == 0.0
    assert unused_share(nodes_behind(layer(table(rows)[:, 0]).sum())) > 0.9
    assert unused_share(set()) == 0.0


def test_a_table_whose_weight_is_that_of_the_output_has_no_unused_rows():
    """Its gradient is dense because each of its rows is used."""
    table, output = torch.nn.Embedding(1000, 8), torch.nn.Linear(8, 1000, bias=False)
    output.weight = table.weight

    assert unused_share(nodes_behind(output(table(torch.randint(0, 1000, (4,)))).sum())) == 0.0


def test_products_of_a_gpu_count_while_they_are_exact(recording, precision):
    """What was told is taken back once TF32 is allowed; unknown is neither."""
    nodes, counted = [on_a_device()], 2 * 2 * 200 * 300 * 400
    assert read_costly_settings(nodes)[names.GRAPH_FLOAT32] == counted
    precision["is"] = "high"
    assert read_costly_settings(nodes)[names.GRAPH_FLOAT32] == 0
    precision["is"] = None
    assert names.GRAPH_FLOAT32 not in read_costly_settings(nodes)


def test_a_node_that_says_other_things_costs_no_other_number(recording, precision):
    """Of another version of torch: the size of the graph is told all the same."""
    recording.may_fail = True
    store_size(SimpleNamespace(grad_fn=OtherNode()), recording.recorder.cells)

    assert gauges(recording)[names.GRAPH_NODES.name] == 1
    assert recording.word(Word.INTERNAL_ERRORS) == 1


class OtherNode:
    """A product on a device that does not say of which shapes."""

    next_functions = ()
    _input_metadata = on_a_device()._input_metadata

    def name(self):
        return "MmBackward0"


@pytest.mark.parametrize("is_on", [False, True])
@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_anomaly_detection_is_seen(is_on):
    """Where it is on around the pass."""
    with torch.autograd.set_detect_anomaly(is_on):
        assert read_costly_settings([]) == {names.AUTOGRAD_ANOMALY: int(is_on)}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", ["highest", "high"])
def test_products_of_a_real_device(kind):
    """By the precision that is set."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(kind)
    try:
        x = torch.randn(200, 300, device="cuda")
        nodes = nodes_behind(torch.nn.Linear(300, 400).cuda()(x).sum())
        expected = 2 * 2 * 200 * 300 * 400 if kind == "highest" else 0
        assert read_costly_settings(nodes)[names.GRAPH_FLOAT32] == expected
    finally:
        torch.set_float32_matmul_precision(before)
