"""DeepSpeed's engine: ZeRO on a group of one, two batches an update, gradients clipped."""

from __future__ import annotations

import os
import tempfile
import warnings

os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}

import deepspeed
import torch
from marks import section
from torch import distributed, nn
from torch.utils.data import TensorDataset

TRUE = {
    "steps": 12,
    "batches": 24,
    "forwards": 24,
    "backwards": 24,
    "updates": 12,
    "validations": 0,
    "checkpoints": 1,  # of two files
}
UNMARKED = ["batches", "updates"]

warnings.filterwarnings("ignore")
CONFIG = {
    "train_batch_size": 32,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {"stage": 1},
}


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    deepspeed.ops.__compatible_ops__ = {}  # else it compiles one of its own for a minute
    deepspeed.logger.setLevel("ERROR")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    data = TensorDataset(torch.randn(384, 256), torch.randint(0, 10, (384,)))
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
    engine, _, loader, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), training_data=data, config=CONFIG
    )
    for x, y in loader:
        with section("forward"):
            output = engine(x)
        loss = nn.functional.cross_entropy(output, y)
        with section("backward"):
            engine.backward(loss)
        engine.step()
    print(f"{engine.global_steps} steps, loss {loss.item():.6f}")
    with tempfile.TemporaryDirectory() as folder, section("checkpoint"):
        engine.save_checkpoint(folder)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
