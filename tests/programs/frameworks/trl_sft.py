"""TRL's SFTTrainer with a small model and a tokenizer that need no download."""

from __future__ import annotations

import tempfile
import warnings

import accelerate
import datasets
import tokenizers
import torch
import transformers
import trl
from accelerate.optimizer import AcceleratedOptimizer
from marks import each_call, each_step
from torch.utils.data.dataloader import _BaseDataLoaderIter

TRUE = {
    "steps": 12,
    "batches": 12,
    "forwards": 12,
    "backwards": 12,
    "updates": 12,
    "validations": 0,
    "checkpoints": 0,
}
UNMARKED = ["batches"]  # the loader is one batch ahead, also of the last step

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
datasets.disable_progress_bars()
WORDS = ["<pad>", "<eos>", *(f"w{i}" for i in range(98))]


def tokenizer():
    """One token a word."""
    model = tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, "<pad>")
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="<eos>"
    )


def place_stopwatch():
    """Where one would put it into the Trainer's own source."""
    first = (transformers.Trainer, "get_batch_samples")
    each_step(first, (transformers.trainer_callback.CallbackHandler, "on_step_end"))
    each_call(_BaseDataLoaderIter, "__next__", "data.load")
    each_call(transformers.GPT2LMHeadModel, "__call__", "forward")
    each_call(accelerate.Accelerator, "backward", "backward")
    each_call(AcceleratedOptimizer, "step", "optimizer")


def main():
    place_stopwatch()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    texts = [" ".join(WORDS[2 + i * j % 98] for j in range(24)) for i in range(120)]
    config = transformers.GPT2Config(
        vocab_size=100,
        n_positions=64,
        n_embd=64,
        n_layer=2,
        n_head=2,
        bos_token_id=1,
        eos_token_id=1,
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = trl.SFTTrainer(
            model=transformers.GPT2LMHeadModel(config),
            args=trl.SFTConfig(
                output_dir=folder,
                max_steps=12,
                per_device_train_batch_size=8,
                max_length=32,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                use_cpu=True,
            ),
            train_dataset=datasets.Dataset.from_list([{"text": text} for text in texts]),
            processing_class=tokenizer(),
        )
        trainer.remove_callback(transformers.PrinterCallback)
        done = trainer.train()
    print(f"{done.global_step} steps, loss {done.training_loss:.6f}")


if __name__ == "__main__":
    main()
