"""A framework's steps are right if its loop ends early, continues, fails or runs again."""

from __future__ import annotations

import signal
import warnings
from collections import Counter

import pytest
import torch
from tiers import import_framework
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import otel_mlperf as om
from otel_mlperf import names
from otel_mlperf.recorder.api.span import active

accelerate = import_framework("accelerate")
lightning = import_framework("lightning")
transformers = import_framework("transformers")

pytestmark = pytest.mark.frameworks
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
STEP = {"data.load": 1, "forward": 1, "backward": 1, "optimizer": 1}
LIGHTNING = STEP | {"training_step": 1}


@pytest.fixture(autouse=True)
def quiet():
    """What the frameworks warn of is not what these tests are about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def parts_of(watched, parts=STEP):
    """Calls of each of these parts in each step, once the run is over."""
    om.stop()
    sections = watched.sections()
    roots = [section.span for section in sections if section.name == "train.step"]
    counts = Counter((section.root, section.name) for section in sections)
    return [{name: counts[root, name] for name in parts} for root in roots]


def epochs_of(watched):
    """The epoch of each step so far."""
    steps = watched.sections("train.step")
    return [step.payload["a"][names.TRAINING_EPOCH] for step in steps]


class Failure(Exception):
    """What a callback raises."""


class Module(lightning.LightningModule):
    """The smallest one."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 1)

    def training_step(self, batch, _):
        return self.net(batch[0]).sum()

    def validation_step(self, batch, _):
        self.log("held_out", self.net(batch[0]).sum())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class FailsAt(lightning.Callback):
    """Raises behind a step."""

    def __init__(self, step):
        self.step = step

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.step:
            raise Failure


def loader():
    return DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=4)


def lightning_trainer(folder, **settings):
    return lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **settings,
    )


def test_lightning_ends_in_the_middle_of_an_epoch(watched, tmp_path):
    """With the last step that was asked for; a batch that was fetched ahead is of none."""
    lightning_trainer(tmp_path, max_steps=6).fit(Module(), loader(), loader())

    assert parts_of(watched) == [STEP] * 6


def test_lightning_training_step_is_the_programs_own(watched, tmp_path):
    """It runs in the closure of an update, whose own time it is not; or before one."""
    lightning_trainer(tmp_path, max_steps=2, accumulate_grad_batches=2).fit(Module(), loader())

    two = {"data.load": 2, "training_step": 2, "forward": 2, "backward": 2, "optimizer": 1}
    assert parts_of(watched, LIGHTNING) == [two] * 2
    own, updates = watched.sections("training_step"), watched.sections("optimizer")
    assert [lies_in(*pair) for pair in zip(own[1::2], updates, strict=True)] == [True] * 2
    assert [one.end <= update.start for one, update in zip(own[::2], updates, strict=True)] == [
        True
    ] * 2
    forwards = watched.sections("forward")
    assert [lies_in(*pair) for pair in zip(forwards, own, strict=True)] == [True] * 4


def lies_in(inner, outer):
    return outer.start <= inner.start and inner.end <= outer.end


class ByHand(Module):
    """Updates in its training step."""

    automatic_optimization = False

    def training_step(self, batch, _):
        self.manual_backward(self.net(batch[0]).sum())
        self.optimizers().step()


def test_lightning_training_step_that_updates_by_hand_is_none(watched, tmp_path):
    """A step may end in it."""
    lightning_trainer(tmp_path, max_steps=4).fit(ByHand(), loader())

    assert parts_of(watched, LIGHTNING) == [STEP | {"training_step": 0}] * 4


class WithAdam(Module):
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def test_lightning_that_is_resumed(watched, tmp_path):
    """Its steps go on behind those of the checkpoint."""
    lightning_trainer(tmp_path, max_steps=3).fit(WithAdam(), loader())
    (checkpoint,) = tmp_path.rglob("*.ckpt")
    active().stepping.set_next_number(0)
    again = lightning_trainer(tmp_path, max_steps=5)
    again.fit(WithAdam(), loader(), ckpt_path=checkpoint)

    assert active().stepping.next_number() == again.global_step == 5


class NotesEpochs(WithAdam):
    """Knows the epoch of each of its steps."""

    def __init__(self):
        super().__init__()
        self.epochs = []

    def training_step(self, batch, number):
        self.epochs.append(self.current_epoch)
        return super().training_step(batch, number)


def test_resumed_trainings_have_the_epochs_of_their_framework(watched, tmp_path):
    """Another program's passes before would not be known."""
    module = NotesEpochs()
    saves = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path, every_n_train_steps=6)
    lightning_trainer(tmp_path, max_steps=7, callbacks=[saves]).fit(module, loader())
    (checkpoint,) = tmp_path.rglob("*.ckpt")
    lightning_trainer(tmp_path, max_steps=10).fit(module, loader(), ckpt_path=checkpoint)
    lightning_steps = epochs_of(watched)
    trainer(tmp_path, max_steps=3, save_strategy="steps", save_steps=3).train()
    per_epoch = len(trainer(tmp_path).get_train_dataloader())
    trainer(tmp_path, max_steps=5).train(resume_from_checkpoint=True)
    om.stop()

    assert lightning_steps == module.epochs
    assert module.epochs[-1] == 2
    assert epochs_of(watched)[len(module.epochs) :] == [n // per_epoch for n in range(5)]


def test_lightning_callback_that_raises(watched, tmp_path):
    """Its exception is the program's, the steps before it stay, and a second training is whole."""
    with pytest.raises(Failure):
        lightning_trainer(tmp_path, max_steps=6, callbacks=[FailsAt(3)]).fit(Module(), loader())
    lightning_trainer(tmp_path, max_steps=2).fit(Module(), loader())

    assert parts_of(watched) == [STEP] * 5


class Interrupts(lightning.Callback):
    """Ctrl-C behind a step."""

    def on_train_batch_end(self, *_):
        raise KeyboardInterrupt


def test_lightning_that_is_interrupted(watched, tmp_path):
    """It catches Ctrl-C and leaves with a code of its own: the run was interrupted all the same."""
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit):
            lightning_trainer(tmp_path, callbacks=[Interrupts()]).fit(Module(), loader())
    finally:
        signal.signal(signal.SIGINT, before)  # Lightning leaves it ignored
    om.stop()

    (run,) = watched.sections("run")
    assert run.payload["e"][0] == "KeyboardInterrupt"


def test_lightning_trainers_one_after_the_other(watched, tmp_path):
    """Each has its steps, with a validation before and after; none falls between two."""
    for _ in range(3):
        lightning_trainer(tmp_path, max_epochs=1).fit(Module(), loader(), loader())

    assert parts_of(watched) == [STEP] * 12
    assert len(watched.sections("validate")) == 6


class Validates(Module):
    """Says where a validation begins and ends."""

    def on_validation_epoch_end(self):
        with om.span("last"):
            pass


def test_validation_of_lightning_is_as_long_as_its_call(watched, tmp_path):
    """It ends with Lightning's own loop, after the hooks, not with the last forward."""
    lightning_trainer(tmp_path, max_epochs=1).fit(Validates(), loader(), loader())
    om.stop()

    validations, hooks = watched.sections("validate"), watched.sections("last")
    assert len(validations) == 2
    for validation, hook in zip(validations, hooks, strict=True):
        assert validation.start < hook.start < hook.end < validation.end


def test_validation_that_saves_ends_before_the_checkpoint(watched, tmp_path):
    """Lightning's callback saves within its loop."""
    saving = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path, monitor="held_out")
    fitted = lightning_trainer(tmp_path, max_epochs=1, callbacks=[saving])
    fitted.fit(Module(), loader(), loader())
    om.stop()

    (checkpoint,) = watched.sections("checkpoint")
    assert len(watched.sections("validate")) == 2
    assert watched.sections("validate")[-1].end <= checkpoint.start


def test_update_of_lightning_is_as_long_as_its_call(watched, tmp_path):
    """What Lightning does around the optimizer is the update, for its caller."""

    class ByHand(Module):
        automatic_optimization = False

        def training_step(self, batch, number):
            optimizer = self.optimizers()
            self.manual_backward(super().training_step(batch, number))
            optimizer._on_after_step = self.after_step
            optimizer.step()

        def after_step(self):
            with om.span("last"):
                pass

    lightning_trainer(tmp_path, max_epochs=1).fit(ByHand(), loader())
    om.stop()

    updates, hooks = watched.sections("optimizer"), watched.sections("last")
    assert len(updates) == len(hooks) == 4
    assert all(hook.end < update.end for update, hook in zip(updates, hooks, strict=True))


class Rows(torch.utils.data.Dataset):
    """Rows as the Trainer wants them."""

    def __len__(self):
        return 16

    def __getitem__(self, i):
        return {"x": torch.full((4,), float(i)), "labels": torch.zeros(1)}


class WithLoss(nn.Module):
    """A model that gives its loss."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 1)

    def forward(self, x, labels):
        return {"loss": nn.functional.mse_loss(self.net(x), labels)}


class FailsBehind(transformers.TrainerCallback):
    """Raises behind a step."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **_):
        if state.global_step == self.step:
            raise Failure


def trainer(folder, held_out=None, **settings):
    arguments = transformers.TrainingArguments(
        output_dir=folder, per_device_train_batch_size=4, use_cpu=True, report_to=[],
        disable_tqdm=True, learning_rate=1e-3, **{"save_strategy": "no", **settings},
    )  # fmt: skip
    made = transformers.Trainer(WithLoss(), arguments, train_dataset=Rows(), eval_dataset=held_out)
    made.remove_callback(transformers.PrinterCallback)
    return made


def test_trainer_callback_that_raises(watched, tmp_path):
    """Its exception is the program's, and the trainings after it are whole."""
    failing = trainer(tmp_path, max_steps=6)
    failing.add_callback(FailsBehind(3))
    with pytest.raises(Failure):
        failing.train()
    for _ in range(2):
        trainer(tmp_path, max_steps=5).train()

    assert parts_of(watched) == [STEP] * 13


class Told(transformers.TrainerCallback):
    """Says where an evaluation ends."""

    def on_evaluate(self, *_, **__):
        with om.span("last"):
            pass


def test_validation_of_the_trainer_is_as_long_as_its_call(watched, tmp_path):
    """It ends with the Trainer's own call, after the callbacks."""
    evaluating = trainer(tmp_path, Rows(), max_steps=4, eval_strategy="steps", eval_steps=2)
    evaluating.add_callback(Told())
    evaluating.train()

    assert parts_of(watched) == [STEP] * 4
    validations, callbacks = watched.sections("validate"), watched.sections("last")
    assert len(validations) == len(callbacks) == 2
    for validation, callback in zip(validations, callbacks, strict=True):
        assert validation.start < callback.start < callback.end < validation.end


def test_update_of_accelerate_is_as_long_as_its_call(watched, monkeypatch):
    """What it does around the optimizer is the update; a call that only accumulates is none."""
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = nn.Linear(4, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    asked = accelerate.optimizer.is_lomo_available

    def first():
        with om.span("first"):
            return asked()

    monkeypatch.setattr(accelerate.optimizer, "is_lomo_available", first)
    for _ in range(4):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.ones(2, 4)).sum())
            optimizer.step()

    updates = watched.sections("optimizer")
    assert len(updates) == 2
    for update in updates:
        inside = [s for s in watched.sections("first") if update.start < s.start < update.end]
        assert inside


def test_backward_of_accelerate_is_as_long_as_its_call(watched, monkeypatch):
    """It divides the loss before that."""
    accelerator = accelerate.Accelerator(cpu=True)

    def one_after_a_look(_):
        with om.span("first"):
            return 1

    steps = property(one_after_a_look)
    monkeypatch.setattr(accelerate.Accelerator, "gradient_accumulation_steps", steps)
    accelerator.backward(nn.Linear(4, 1)(torch.ones(2, 4)).sum())

    (backward,), (first,) = watched.sections("backward"), watched.sections("first")
    assert backward.start < first.start < first.end < backward.end


def test_backward_of_accelerate_that_updates_too_is_not_all_backward(watched, monkeypatch):
    """By DeepSpeed, the engine goes back and steps in that one call."""
    accelerator, model = accelerate.Accelerator(cpu=True), nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    class Engine:
        def backward(self, loss, **_):
            loss.backward()
            optimizer.step()

    monkeypatch.setattr(accelerator.state, "distributed_type", accelerate.DistributedType.DEEPSPEED)
    monkeypatch.setattr(accelerator, "deepspeed_engine_wrapped", Engine(), raising=False)
    accelerator.backward(model(torch.ones(2, 4)).sum())

    (backward,), (update,) = watched.sections("backward"), watched.sections("optimizer")
    assert backward.end <= update.start


def test_trainer_that_is_resumed(watched, tmp_path):
    """Its steps go on behind those of the checkpoint."""
    trainer(tmp_path, max_steps=3, save_strategy="steps", save_steps=3).train()
    active().stepping.set_next_number(0)
    again = trainer(tmp_path, max_steps=5)
    again.train(resume_from_checkpoint=True)

    assert active().stepping.next_number() == again.state.global_step == 5


def test_pretrained_model_is_a_checkpoint_that_is_read(watched, tmp_path):
    """Of all its files, as ``from_pretrained`` reads them; what is read inside is no second one."""
    config = transformers.GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=1000, n_positions=8)
    transformers.GPT2Model(config).save_pretrained(tmp_path, max_shard_size="20kB")
    transformers.GPT2Model.from_pretrained(tmp_path)
    files = list(tmp_path.glob("*.safetensors"))

    (section,) = watched.sections("checkpoint.load")
    size = section.payload["a"][names.CHECKPOINT_SIZE]
    assert len(files) > 1
    assert size == sum(path.stat().st_size for path in files)
