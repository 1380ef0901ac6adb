"""Lightning's Trainer: automatic optimisation, sanity check, validations, checkpoints."""

from __future__ import annotations

import logging
import tempfile
import warnings

import lightning
import torch
from lightning.pytorch.loops import _EvaluationLoop, _TrainingEpochLoop
from lightning.pytorch.plugins.io import TorchCheckpointIO
from marks import each_call, each_step, section
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

TRUE = {
    "steps": 24,
    "epochs": [12, 12],
    "batches": 24,
    "forwards": 24,
    "backwards": 24,
    "updates": 24,
    "validations": 3,  # the sanity check is one
    "checkpoints": 2,
}

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Classifier(lightning.LightningModule):
    """A module as Lightning's own introduction writes it."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10))

    def training_step(self, batch, _batch_idx):
        x, y = batch
        with section("forward"):
            output = self.net(x)
        loss = nn.functional.cross_entropy(output, y)
        self.log("loss", loss)
        return loss

    def backward(self, loss):
        with section("backward"):
            loss.backward()

    def optimizer_step(self, *arguments, **keywords):
        with section("optimizer"):
            super().optimizer_step(*arguments, **keywords)

    def validation_step(self, batch, _batch_idx):
        x, y = batch
        self.log("held_out", nn.functional.cross_entropy(self.net(x), y))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def examples(count):
    """Random images of random digits."""
    return TensorDataset(torch.randn(count, 256), torch.randint(0, 10, (count,)))


def main():
    loop = _TrainingEpochLoop
    each_step((loop, "advance"), (loop, "on_advance_end"))
    each_call(_BaseDataLoaderIter, "__next__", "data.load")
    each_call(_EvaluationLoop, "run", "validate")
    each_call(TorchCheckpointIO, "save_checkpoint", "checkpoint")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            max_epochs=2,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )
        training = DataLoader(examples(3072), batch_size=256, shuffle=True)
        trainer.fit(Classifier(), training, DataLoader(examples(1024), batch_size=256))
    print(f"{trainer.global_step} steps, loss {trainer.callback_metrics['loss'].item():.6f}")


if __name__ == "__main__":
    main()
