"""Backward passes are seen by one gate: in programs by the API, and in loops that are inferred."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import otel_mlperf as om
from otel_mlperf import names
from otel_mlperf.integrations.torch_loop import TorchLoop

NODES, WEIGHTS = names.GRAPH_NODES.name, names.GRAPH_WEIGHTS.name


def descend(count, also=lambda loss: None):
    """Passes of an update by the API, which log a number."""
    weight = torch.ones(3, requires_grad=True)
    for _ in range(count):
        with om.step():
            loss = (weight * 2).sum()
            also(loss)
            loss.backward()
            om.log(loss=loss.item())


def test_operations_are_counted_where_only_numbers_are_logged(train):
    """In the second pass: a product, a sum and a weight."""
    trained = train()
    descend(1)
    before = trained.counted(NODES)
    descend(1)

    assert (before, trained.counted(NODES), trained.counted(WEIGHTS)) == (0.0, 3.0, 1.0)


def test_each_run_of_a_process_counts_its_own(train):
    """The second one as well."""
    train()
    descend(2)
    om.stop()
    trained = train()
    descend(2)

    assert trained.counted(NODES) == 3.0


def test_passes_inside_a_pass_are_not_counted(train):
    """A checkpoint computes its part again, with a pass of its own."""
    trained = train()
    weight = torch.ones(3, requires_grad=True)
    for _ in range(2):
        sums = [checkpoint(lambda w: w * 2, weight, use_reentrant=True) for _ in range(6)]
        torch.stack(sums).sum().backward()

    assert trained.counted(NODES) == 9.0


@pytest.mark.parametrize("reentrant", [True, False])
def test_calls_that_compute_again_are_counted_for_each_pass(train, reentrant):
    """Six before each of two passes; the work and its gradient stay the same."""
    trained = train()
    weight = torch.ones(3, requires_grad=True)
    for _ in range(2):
        sums = [checkpoint(lambda w: w * 2, weight, use_reentrant=reentrant) for _ in range(6)]
        torch.stack(sums).sum().backward()

    assert trained.counted(names.GRAPH_CHECKPOINTS.name) == 6.0
    assert weight.grad.tolist() == [24.0] * 3


def test_a_loop_that_is_inferred_later_has_its_backward_sections(train):
    """The gate that was woven for the API passes the calls on, and counts again afterwards."""
    trained, integration = train(), TorchLoop()
    descend(1)
    integration.switch_on(torch)
    try:
        descend(1)
    finally:
        integration.switch_off()
    descend(18)

    assert len(trained.sections("backward")) == 1
    assert trained.counted(NODES) == 3.0


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_anomaly_detection_around_the_pass_alone_is_seen(train):
    """It is off again when the loss is logged."""
    trained = train()
    with torch.autograd.set_detect_anomaly(True):
        descend(2)

    assert trained.counted(names.AUTOGRAD_ANOMALY.name) == 1.0
