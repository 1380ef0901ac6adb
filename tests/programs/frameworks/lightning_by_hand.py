"""Lightning's manual optimisation with two optimizers that take turns, as in a GAN."""

from __future__ import annotations

import logging
import tempfile
import warnings

import pytorch_lightning
import torch
from marks import each_call, each_step, section
from pytorch_lightning.loops import _TrainingEpochLoop
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

TRUE = {
    "steps": 12,
    "batches": 12,
    "forwards": 48,
    "backwards": 24,
    "updates": 24,
    "validations": 0,
    "checkpoints": 0,
}

warnings.filterwarnings("ignore")
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)


class Adversaries(pytorch_lightning.LightningModule):
    """A generator and a discriminator, trained by hand."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 256))
        self.discriminator = nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 1))

    def training_step(self, batch, _batch_idx):
        (real,) = batch
        noise = torch.randn(len(real), 64)
        for optimizer, sign in zip(self.optimizers(), (1.0, -1.0), strict=True):
            with section("forward"):
                made = self.generator(noise)
            with section("forward"):
                loss = sign * self.discriminator(made).mean()
            optimizer.zero_grad()
            with section("backward"):
                self.manual_backward(loss)
            with section("optimizer"):
                optimizer.step()

    def configure_optimizers(self):
        parts = (self.generator, self.discriminator)
        return [torch.optim.Adam(part.parameters(), lr=1e-4) for part in parts]


def main():
    loop = _TrainingEpochLoop
    each_step((loop, "advance"), (loop, "on_advance_end"))
    each_call(_BaseDataLoaderIter, "__next__", "data.load")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Adversaries()
    with tempfile.TemporaryDirectory() as folder:
        trainer = pytorch_lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )
        trainer.fit(model, DataLoader(TensorDataset(torch.randn(3072, 256)), batch_size=256))
    print(f"{trainer.global_step} updates, {model.generator[0].weight.sum().item():.6f}")


if __name__ == "__main__":
    main()
