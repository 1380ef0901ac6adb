"""Are the operations of a backward pass counted, each once?"""

from __future__ import annotations

import pytest
import torch

from otel_mlperf.recorder.instruments.graph_size import MOST, count_operations


def test_operations_of_a_graph_are_counted_once():
    """Product, sum and the leaf's own; both ways lead to that one."""
    x = torch.ones(3, requires_grad=True)

    assert count_operations((x * x).sum()).nodes == 3


def test_elements_that_are_taken_out_are_counted_apart():
    """A loop over time takes one out each time; a part of several is none."""
    x = torch.ones(5, 4, requires_grad=True) * 2

    assert count_operations(sum(x[t].sum() for t in range(5))).selects == 5
    assert count_operations(x[1:3].sum()).selects == 0


def test_a_weight_counts_once_however_often_it_is_used():
    """Five products with the one, and one with the other."""
    a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    x = b
    for _ in range(5):
        x = x * a

    assert count_operations(x.sum()).weights == 2


@pytest.mark.parametrize("kind", [torch.nn.GRU, torch.nn.RNN])
@pytest.mark.parametrize("both_ways", [False, True])
def test_a_loop_of_torch_itself_tells_no_weights(kind, both_ways):
    """Whole batches or packed ones: nobody can write it better; a cell in a loop of Python is."""
    rnn = kind(3, 4, batch_first=True, bidirectional=both_ways)
    x = torch.randn(2, 20, 3)
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, [20, 18], batch_first=True)

    assert count_operations(rnn(x)[0].sum()).weights == 0
    assert count_operations(rnn(packed)[0].data.sum()).weights == 0


@pytest.mark.parametrize("kind", [torch.nn.GRUCell, torch.nn.RNNCell])
def test_a_cell_in_a_loop_of_python_tells_its_weights(kind):
    """Two matrices and two vectors."""
    cell, h = kind(3, 4), torch.zeros(2, 4)
    for step in torch.randn(20, 2, 3):
        h = cell(step, h)

    assert count_operations(h.sum()).weights == 4


def test_several_tensors_share_what_is_behind_them():
    """As ``torch.autograd.backward`` takes them."""
    x = torch.ones(3, requires_grad=True)
    y = x * 2

    assert count_operations([y.sum(), y.mean()]).nodes == 4


def test_what_has_no_graph_has_no_operation():
    """The call will fail, which is the program's."""
    assert count_operations(torch.ones(1)) == (0, 0, 0)
    assert count_operations(None) == (0, 0, 0)


def test_a_huge_graph_is_counted_up_to_a_limit():
    """Counting takes its time."""
    y = torch.ones(1, requires_grad=True)
    for _ in range(MOST + 10):
        y = y + 1

    assert count_operations(y).nodes == MOST
