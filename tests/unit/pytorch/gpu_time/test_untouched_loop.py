"""The steps of a watched loop have GPU time like those that the program reports."""

from __future__ import annotations

from collections import Counter

import torch

import otel_mlperf as om
from otel_mlperf.integrations.torch_loop import TorchLoop

MS = 1_000_000


def test_inferred_steps(gpu_run):
    """Steps, forward, loss, backward and optimizer of a plain loop of torch, each call once."""
    torch_loop, gpu = TorchLoop(), gpu_run.gpu
    torch_loop.switch_on(torch)
    try:
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        loader = torch.utils.data.DataLoader(torch.randn(24, 4), batch_size=4)
        for _ in range(2):
            for batch in loader:
                optimizer.zero_grad()
                loss = torch.nn.MSELoss()(model(batch), batch)
                gpu.launch(MS)
                gpu.host(3 * MS)
                loss.backward()
                optimizer.step()
    finally:
        torch_loop.switch_off()
    gpu.host(1000 * MS)
    om.stop()

    told = Counter(told.name for told in gpu_run.told)
    assert told == dict.fromkeys(("train.step", "forward", "loss", "backward", "optimizer"), 12)
    assert not gpu_run.missed
    steps = [told.ns for told in gpu_run.told if told.is_step]
    assert all(3 * MS <= ns < 4 * MS for ns in steps[:-1])
