"""Are the operations of a backward pass counted, each once?"""

from __future__ import annotations

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
