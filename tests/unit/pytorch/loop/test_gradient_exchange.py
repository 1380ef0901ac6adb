"""Is it recorded how long backward passes wait for DDP's collectives?"""

from __future__ import annotations

import pytest
import torch
from torch import distributed

from otel_mlperf import names
from otel_mlperf.pytorch.loop.gradient_exchange import ASKED, exposed_s

EXPOSED = names.DDP_EXPOSED_COMMUNICATION.name


class DistributedDataParallel(torch.nn.Linear):
    """Stands for torch's, in which times are what the machine makes them."""

    def _get_ddp_logging_data(self):
        return {
            "avg_backward_comm_time": 30_000_000,
            "avg_backward_compute_comm_overlap_time": 10_000,
        }


def train(model, steps):
    """An untouched loop."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(steps):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()


def test_what_ddp_has_timed_is_recorded(watched):
    """As a reading, from the 20th call of the model on."""
    model = DistributedDataParallel(4, 1)
    train(model, ASKED[0] - 1)
    before = watched.counted(EXPOSED)
    train(model, 1)

    assert (before, watched.counted(EXPOSED)) == (0.0, pytest.approx(0.02999))


def test_a_usual_model_is_not_asked(watched):
    """Nobody exchanges its gradients."""
    train(torch.nn.Linear(4, 1), ASKED[0] + 1)

    assert watched.counted(EXPOSED) == 0.0


def test_what_torch_itself_tells(tmp_path):
    """Nothing before the first pass, a time after ten."""
    meet = f"file://{tmp_path}/meet"
    distributed.init_process_group("gloo", init_method=meet, rank=0, world_size=1)
    try:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
        before = exposed_s(model)
        train(model, 12)

        assert before is None
        assert exposed_s(model) >= 0.0
    finally:
        distributed.destroy_process_group()
