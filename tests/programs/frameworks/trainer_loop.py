"""Hugging Face's Trainer: fetch ahead, accumulation, evaluation and checkpoints in an epoch."""

from __future__ import annotations

import tempfile
import warnings

import accelerate
import torch
import transformers
from accelerate.optimizer import AcceleratedOptimizer
from marks import each_call, each_step
from torch.utils.data import Dataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

TRUE = {
    "steps": 20,
    "epochs": [13, 7],
    "batches": [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 2, 2, 2, 2, 2, 2, 2],  # 25 an epoch
    "forwards": [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 2, 2, 2, 2, 2, 2, 2],
    "backwards": [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 2, 2, 2, 2, 2, 2, 2],
    "updates": 20,
    "validations": 2,
    "checkpoints": 2,  # each of five files
}
UNMARKED = ["batches"]  # the loader is one batch ahead, also of the last step

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


class Tokens(Dataset):
    """Random texts."""

    def __init__(self, count):
        self.texts = torch.randint(0, 100, (count, 32))

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, i):
        return {"input_ids": self.texts[i], "labels": self.texts[i]}


def place_stopwatch():
    """Where one would put it into the Trainer's own source."""
    first = (transformers.Trainer, "get_batch_samples")
    each_step(first, (transformers.trainer_callback.CallbackHandler, "on_step_end"))
    each_call(_BaseDataLoaderIter, "__next__", "data.load")
    each_call(transformers.GPT2LMHeadModel, "__call__", "forward")
    each_call(accelerate.Accelerator, "backward", "backward")
    each_call(AcceleratedOptimizer, "step", "optimizer")
    each_call(transformers.Trainer, "evaluate", "validate")
    each_call(transformers.Trainer, "_save_checkpoint", "checkpoint")


def main():
    place_stopwatch()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = transformers.GPT2Config(
        vocab_size=100,
        n_positions=32,
        n_embd=64,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=1,
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = transformers.Trainer(
            model=transformers.GPT2LMHeadModel(config),
            args=transformers.TrainingArguments(
                output_dir=folder,
                max_steps=20,
                per_device_train_batch_size=8,
                gradient_accumulation_steps=2,
                eval_strategy="steps",
                eval_steps=10,
                save_steps=10,
                report_to=[],
                disable_tqdm=True,
                use_cpu=True,
            ),
            train_dataset=Tokens(200),
            eval_dataset=Tokens(32),
        )
        trainer.remove_callback(transformers.PrinterCallback)
        done = trainer.train()
    print(f"{done.global_step} steps, loss {done.training_loss:.6f}")


if __name__ == "__main__":
    main()
