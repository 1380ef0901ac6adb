"""One save by a framework is one checkpoint, with all its files and its whole time."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from tiers import import_framework
from torch import nn

from otel_mlperf import names

accelerate = import_framework("accelerate")
lightning = import_framework("lightning")
transformers = import_framework("transformers")

pytestmark = pytest.mark.frameworks
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


@pytest.fixture(autouse=True)
def quiet():
    """Warnings of the frameworks are not the subject of these tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def model_and_optimizer():
    model = nn.Linear(64, 64)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(64)).sum().backward()
    optimizer.step()
    return model, optimizer


def small_gpt():
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=10, n_positions=8, n_embd=8, n_layer=1, n_head=1)
    )


def save_by_accelerate(folder):
    accelerator = accelerate.Accelerator(cpu=True)
    accelerator.prepare(*model_and_optimizer())
    return lambda: accelerator.save_state(str(folder))


def save_by_trainer(folder):
    arguments = transformers.TrainingArguments(output_dir=str(folder), report_to=[], use_cpu=True)
    trainer = transformers.Trainer(model=small_gpt(), args=arguments)
    trainer.create_optimizer_and_scheduler(1)
    return lambda: trainer._save_checkpoint(trainer.model, None)


def save_by_model(folder):
    model = small_gpt()
    return lambda: model.save_pretrained(folder, max_shard_size="1KB")


def save_by_fabric(folder):
    fabric = lightning.Fabric(accelerator="cpu")
    model, optimizer = fabric.setup(*model_and_optimizer())
    return lambda: fabric.save(Path(folder, "state.ckpt"), {"model": model, "optimizer": optimizer})


SAVES = [save_by_accelerate, save_by_trainer, save_by_model, save_by_fabric]


@pytest.mark.parametrize("prepare", SAVES, ids=lambda prepare: prepare.__name__)
def test_save_is_one_checkpoint(watched, tmp_path, prepare):
    """Its size is that of all the files that torch and safetensors wrote."""
    prepare(tmp_path)()

    (section,) = watched.sections(names.SPAN_CHECKPOINT)
    files = (path for path in tmp_path.rglob("*.*") if path.suffix != ".json")
    size = section.payload["a"][names.CHECKPOINT_SIZE]
    assert size == pytest.approx(sum(path.stat().st_size for path in files), rel=0.01)
    assert watched.counted(names.CHECKPOINT_IO.name) == size


def test_restored_state_is_one_checkpoint(watched, tmp_path):
    """All that one call reads."""
    save_by_accelerate(tmp_path)()
    accelerator = accelerate.Accelerator(cpu=True)
    accelerator.prepare(*model_and_optimizer())
    accelerator.load_state(str(tmp_path))

    assert len(watched.sections(names.SPAN_CHECKPOINT_LOAD)) == 1
