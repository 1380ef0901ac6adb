"""DDP's exchange in a backward pass is recorded, with the wait for it."""

from __future__ import annotations

import pytest
import torch
from torch import distributed

from otel_mlperf import names
from otel_mlperf.pytorch.loop.training_moments import EXCHANGE_PASSES, read_exchange

EXPOSED = names.DDP_EXPOSED_COMMUNICATION.name


class DistributedDataParallel(torch.nn.Linear):
    """Stands for torch's, in which times are what the machine makes them."""

    def _get_ddp_logging_data(self):
        return {
            "avg_backward_comm_time": 30_000_000,
            "avg_backward_compute_comm_overlap_time": 10_000,
            "bucket_sizes": "7000",
            "rebuilt_bucket_sizes": "4000, 3000",
        }


def train(model, steps):
    """An untouched loop."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(steps):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()


def test_what_ddp_has_timed_and_moves_is_recorded(watched):
    """As readings, from the 20th call of the model on; buckets as they were made anew."""
    model = DistributedDataParallel(4, 1)
    train(model, EXCHANGE_PASSES[0] - 1)
    before = watched.counted(EXPOSED)
    train(model, 1)

    assert (before, watched.counted(EXPOSED)) == (0.0, pytest.approx(0.02999))
    assert watched.counted(names.DDP_BUCKETS.name) == 2
    assert watched.counted(names.DDP_GRADIENTS.name) == 7000


def test_a_usual_model_is_not_asked(watched):
    """Nobody exchanges its gradients."""
    train(torch.nn.Linear(4, 1), EXCHANGE_PASSES[0] + 1)

    assert watched.counted(EXPOSED) == 0.0


def test_what_torch_itself_tells(tmp_path):
    """No time before the first pass, one after ten; the buckets hold all gradients."""
    meet = f"file://{tmp_path}/meet"
    distributed.init_process_group("gloo", init_method=meet, rank=0, world_size=1)
    try:
        layers = torch.nn.Sequential(torch.nn.Linear(4, 1024), torch.nn.Linear(1024, 1024))
        model = torch.nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=2)
        before = {metric.name: value for metric, value in read_exchange(model)}
        train(model, 12)
        after = {metric.name: value for metric, value in read_exchange(model)}
    finally:
        distributed.destroy_process_group()

    assert EXPOSED not in before
    assert after[EXPOSED] >= 0.0
    assert after[names.DDP_BUCKETS.name] == 2
    assert after[names.DDP_GRADIENTS.name] == 4 * sum(one.numel() for one in layers.parameters())
