"""The operations of a backward pass are counted, each once."""

from __future__ import annotations

import pytest
import torch

from otel_mlperf import names
from otel_mlperf.recorder.instruments.graph_size import MOST, count_operations, nodes_behind


def counted(tensors):
    """By metric what is in the graph behind them."""
    return count_operations(nodes_behind(tensors))


def test_operations_of_a_graph_are_counted_once():
    """Product, sum and the leaf's own; both ways lead to that one."""
    x = torch.ones(3, requires_grad=True)

    assert counted((x * x).sum())[names.GRAPH_NODES] == 3


def test_elements_that_are_taken_out_are_counted_apart():
    """A loop over time takes one out each time; a part of several is none."""
    x = torch.ones(5, 4, requires_grad=True) * 2

    assert counted(sum(x[t].sum() for t in range(5)))[names.GRAPH_SELECTS] == 5
    assert counted(x[1:3].sum())[names.GRAPH_SELECTS] == 0


def test_a_weight_counts_once_however_often_it_is_used():
    """Five products with the one, and one with the other."""
    a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    x = b
    for _ in range(5):
        x = x * a

    assert counted(x.sum())[names.GRAPH_WEIGHTS] == 2


@pytest.mark.parametrize("kind", [torch.nn.GRU, torch.nn.RNN])
@pytest.mark.parametrize("both_ways", [False, True])
def test_a_loop_of_torch_itself_tells_no_weights(kind, both_ways):
    """Whole batches or packed ones: nobody can write it better; a cell in a loop of Python is."""
    rnn = kind(3, 4, batch_first=True, bidirectional=both_ways)
    x = torch.randn(2, 20, 3)
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, [20, 18], batch_first=True)

    assert counted(rnn(x)[0].sum()).get(names.GRAPH_WEIGHTS) is None
    assert counted(rnn(packed)[0].data.sum()).get(names.GRAPH_WEIGHTS) is None


@pytest.mark.parametrize("take", [lambda x, t: x[:, t : t + 1].squeeze(1), lambda x, t: x[:, t]])
def test_a_cell_that_takes_slices_of_a_sequence_tells_its_weights(take):
    """Torch's own RNN slices packed sequences, but uses half of its weights at each time."""
    cell, x, h = torch.nn.GRUCell(3, 4), torch.randn(2, 20, 3, requires_grad=True), None
    for t in range(20):
        h = cell(take(x, t), h)

    assert counted(h.sum())[names.GRAPH_WEIGHTS] == 5


def test_heads_that_are_sliced_one_by_one_tell_their_weights():
    """An attention without a loop over time: its weights are used once."""
    layer, x = torch.nn.Linear(8, 8), torch.randn(2, 5, 8)
    heads = [layer(x)[..., 2 * n : 2 * n + 2] for n in range(4)]

    assert counted(torch.cat(heads).sum())[names.GRAPH_WEIGHTS] == 2


@pytest.mark.parametrize("kind", [torch.nn.GRUCell, torch.nn.RNNCell])
def test_a_cell_in_a_loop_of_python_tells_its_weights(kind):
    """Two matrices and two vectors."""
    cell, h = kind(3, 4), torch.zeros(2, 4)
    for step in torch.randn(20, 2, 3):
        h = cell(step, h)

    assert counted(h.sum())[names.GRAPH_WEIGHTS] == 4


@pytest.mark.parametrize("through", [lambda e: e.unbind(1), lambda e: e.transpose(0, 1)])
def test_a_cell_that_goes_through_an_embedding_tells_its_weights(through):
    """The parts are those of the sequence, as in torch's own RNN; the cell is used for each."""
    embedding, projection = torch.nn.Embedding(9, 3), torch.nn.Linear(3, 3)
    embedded = embedding(torch.randint(0, 9, (2, 20)))
    cell = torch.nn.GRUCell(3, 4)

    for sequence, weights in ((embedded, 5), (projection(embedded), 7)):
        h = torch.zeros(2, 4)
        for step in through(sequence):
            h = cell(step, h)
        assert counted(h.sum())[names.GRAPH_WEIGHTS] == weights


def test_an_attention_that_parts_one_product_tells_its_weights():
    """Queries, keys and values are parts of a product, too; no weight is used in a loop."""
    layer = torch.nn.Linear(6, 18)
    q, k, v = layer(torch.randn(2, 5, 6)).reshape(2, 5, 3, 6).unbind(2)

    assert counted((q @ k.mT @ v).sum())[names.GRAPH_WEIGHTS] == 2


def test_several_tensors_share_what_is_behind_them():
    """As ``torch.autograd.backward`` takes them."""
    x = torch.ones(3, requires_grad=True)
    y = x * 2

    assert counted([y.sum(), y.mean()])[names.GRAPH_NODES] == 4


def test_what_has_no_graph_has_no_operation():
    """The call will fail, which is the program's."""
    assert set(counted(torch.ones(1)).values()) == {0}
    assert set(counted(None).values()) == {0}


def test_a_huge_graph_is_counted_up_to_a_limit():
    """Counting takes its time."""
    y = torch.ones(1, requires_grad=True)
    for _ in range(MOST + 10):
        y = y + 1

    assert counted(y)[names.GRAPH_NODES] == MOST
