"""The loops of frameworks, imitated call by call, are recorded with their real steps."""

from __future__ import annotations

import importlib
import itertools
import sys
import time
from collections import Counter

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

import otel_mlperf as om
from otel_mlperf.integrations.torch_loop import TorchLoop
from otel_mlperf.recorder.sections.section_context import CURRENT

PARTS = ("data.load", "forward", "loss", "backward", "optimizer", "checkpoint", "checkpoint.load")


class Recorded:
    """What a run has recorded, once it is over."""

    def __init__(self, watched):
        om.stop()
        self.sections = watched.sections()
        self.steps = [section for section in self.sections if section.name == "train.step"]
        roots = {step.span for step in self.steps}
        self.parts = [self._count(lambda s, root=step.span: s.root == root) for step in self.steps]
        self.outside = self._count(lambda s: s.root not in roots)
        self.validations = [section for section in self.sections if section.name == "validate"]

    @property
    def samples(self):
        return [step.payload.get("n") for step in self.steps]

    def named(self, name):
        return [section for section in self.sections if section.name == name]

    def _count(self, is_meant):
        return dict(Counter(s.name for s in self.sections if s.name in PARTS and is_meant(s)))


def make_model():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


def batches(number, size=4):
    return DataLoader(TensorDataset(torch.randn(number * size, 4)), batch_size=size)


def optimizer_of(model):
    return torch.optim.SGD(model.parameters(), lr=1e-3)


STEP = {"data.load": 1, "forward": 1, "backward": 1, "optimizer": 1}


class Shard:
    """Iterates as accelerate's DataLoaderShard does: one batch ahead, until it knows the last."""

    def __init__(self, loader):
        self.loader, self.end = loader, False

    def __iter__(self):
        self.end = False
        iterator = self.loader.__iter__()
        try:
            current = next(iterator)
        except StopIteration:
            yield
        while True:
            try:
                following = next(iterator)
                yield current
                current = following
            except StopIteration:
                self.end = True
                yield current
                break


@pytest.mark.parametrize("workers", [{}, {"num_workers": 1, "persistent_workers": True}])
def test_batches_that_are_all_read_before_the_loop_are_of_no_step(watched, workers):
    """Their waits are outside, in the epochs after the first, too; no step has their samples."""
    model, loader = make_model(), DataLoader(TensorDataset(torch.randn(12, 4)), 4, **workers)
    optimizer = optimizer_of(model)
    for _ in range(2):
        for (x,) in list(loader):
            model(x).sum().backward()
            optimizer.step()
    found = Recorded(watched)

    assert found.parts == [{"forward": 1, "backward": 1, "optimizer": 1}] * 6
    assert found.outside == {"data.load": 6}
    assert found.samples == [None] * 6


def test_single_batch_that_is_asked_for_ahead_is_the_step_s(watched):
    """Nobody can tell it from one that is read before the loop."""
    model = make_model()
    optimizer = optimizer_of(model)
    iterator = iter(batches(1))
    ((x,), following) = next(iterator), next(iterator, None)
    model(x).sum().backward()
    optimizer.step()
    found = Recorded(watched)

    assert following is None
    assert found.parts == [{**STEP, "data.load": 2}]


def test_trainer_that_fetches_ahead_and_accumulates(watched):
    """Hugging Face Trainer: groups of batches, a mode that is set after the fetch, evaluations."""
    model, loader, held_out = make_model(), Shard(batches(5)), Shard(batches(2))
    optimizer = optimizer_of(model)

    def evaluate():
        model.eval()
        for (x,) in held_out:
            with torch.no_grad():
                model(x)

    for _ in range(2):
        iterator, number, loader.end = iter(loader), 0, False
        while not loader.end:
            group = [next(iterator) for _ in range(min(2, 5 - number))]
            number += len(group)
            for (x,) in group:
                model.train()
                model(x).sum().backward()
            optimizer.step()
            model.zero_grad()
            if number == 2:
                evaluate()
        evaluate()
    recorded = Recorded(watched)

    two = {"data.load": 2, "forward": 2, "backward": 2, "optimizer": 1}
    assert recorded.parts == [two, two, STEP] * 2
    assert recorded.samples == [8, 8, 4] * 2
    assert len(recorded.validations) == 4
    assert recorded.outside == {"data.load": 8, "forward": 8}


def test_accelerated_loop(watched):
    """accelerate: each batch is asked for while the one before is trained on."""
    model, loader = make_model(), Shard(batches(3))
    optimizer = optimizer_of(model)
    for _ in range(2):
        for (x,) in loader:
            model(x).sum().backward()
            optimizer.step()
    recorded = Recorded(watched)

    assert recorded.parts == [STEP] * 6
    assert recorded.samples == [4] * 6
    assert recorded.outside == {}


def test_nothing_stays_current_after_a_loop(watched):
    """What follows is in the run, not in a step that was taken back with the loader's end."""
    model = make_model()
    optimizer = optimizer_of(model)
    for (x,) in batches(2):
        model(x).sum().backward()
        optimizer.step()

    assert CURRENT.get() is watched.run._section


class Measured:
    """A batch that notes when it was asked how large it is."""

    def __init__(self, rows):
        self.rows, self.asked_ns = rows, 0

    @property
    def shape(self):
        self.asked_ns = time.monotonic_ns()
        return self.rows.shape


def test_wait_holds_what_is_looked_at_in_its_batch(watched):
    """Also the first one of a generator: whoever waits for the batch waits for that, too."""
    seen = []

    def rows():
        yield from DataLoader(torch.randn(8, 4), batch_size=4, collate_fn=to_measured)

    model = make_model()
    optimizer = optimizer_of(model)
    for batch in rows():
        model(batch.rows).sum().backward()
        optimizer.step()
        seen.append(batch.asked_ns)
    waits = Recorded(watched).named("data.load")

    assert [wait.start < at < wait.end for wait, at in zip(waits, seen, strict=True)] == [True] * 2


def to_measured(rows):
    return Measured(torch.stack(rows))


def test_wait_ends_where_the_first_batch_is_there(watched):
    """What a generator does with its first batch is no wait, unless it asks for another first."""
    model, optimizer = make_model(), None
    optimizer = optimizer_of(model)

    def rows():
        for (x,) in batches(2):
            om.span("prepare").__enter__().__exit__(None, None, None)
            yield x

    for x in rows():
        model(x).sum().backward()
        optimizer.step()
    recorded = Recorded(watched)

    assert recorded.parts == [STEP] * 2
    waits, prepared = recorded.named("data.load"), recorded.named("prepare")
    assert all(w.end <= p.start for w, p in zip(waits, prepared, strict=True))


class FitLoop:
    """Calls as Lightning's automatic optimisation does: an update always has a closure."""

    def __init__(self, model, optimizer, accumulate=1):
        self.model, self.optimizer, self.accumulate = model, optimizer, accumulate

    def closure(self, x):
        loss = self.model(x).sum()
        loss.backward()
        return loss

    def validate(self, loader):
        self.model.eval()
        with torch.inference_mode():
            for (x,) in loader:
                self.model(x)
        self.model.train()

    def fit(self, loader, held_out):
        self.validate(held_out)  # the sanity check
        for number, (x,) in enumerate(loader, start=1):
            if number % self.accumulate and number < len(loader):
                self.closure(x)
            else:
                self.optimizer.step(closure=lambda x=x: self.closure(x))
        self.validate(held_out)


def test_automatic_optimisation(watched):
    """Forward and backward show inside the update, whose own time is the rest."""
    model = make_model()
    FitLoop(model, optimizer_of(model)).fit(batches(3), batches(1))
    recorded = Recorded(watched)

    assert recorded.parts == [STEP] * 3
    assert len(recorded.validations) == 2
    for update in recorded.named("optimizer"):
        inside = [s for s in recorded.sections if update.start < s.start and s.end < update.end]
        assert [s.name for s in inside] == ["forward", "backward"]


def test_automatic_optimisation_that_accumulates(watched):
    """Closures are called without an update first: all of them are the step's."""
    model = make_model()
    FitLoop(model, optimizer_of(model), accumulate=2).fit(batches(5), batches(1))
    recorded = Recorded(watched)

    two = {"data.load": 2, "forward": 2, "backward": 2, "optimizer": 1}
    assert recorded.parts == [two, two, STEP]
    assert recorded.samples == [8, 8, 4]


def test_scaler_that_leaves_an_update_out(watched):
    """Infinite gradients skip the update; the step that tried is one."""
    model, scaler = make_model(), torch.amp.GradScaler("cpu")
    optimizer = optimizer_of(model)
    for number, (x,) in enumerate(batches(3)):
        loss = model(x).sum() * (float("inf") if number == 1 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    assert Recorded(watched).parts == [STEP] * 3


class Wrapped(torch.optim.Optimizer):
    """An optimizer around another, as SAM is: two passes, one update."""

    def __init__(self, inner):
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure=None):
        closure()
        closure()
        return self.inner.step()


def test_optimizer_around_another_is_one(watched):
    """Without a loader, too, one call of the outer one is one step."""
    model, x = make_model(), torch.randn(4, 4)
    optimizer = Wrapped(optimizer_of(model))
    for _ in range(3):
        optimizer.step(lambda: model(x).sum().backward())
    recorded = Recorded(watched)

    assert recorded.parts == [{"forward": 2, "backward": 2, "optimizer": 1}] * 3


def test_two_networks_without_a_loader(watched):
    """A step is a turn of both, from the first one on; the loss is no forward of theirs."""
    judge, maker, criterion = make_model(), make_model(), nn.MSELoss()
    judges, makers = optimizer_of(judge), optimizer_of(maker)
    for _ in range(3):
        criterion(
            judge(maker(torch.randn(4, 4)).expand(4, 4).detach()), torch.ones(4, 1)
        ).backward()
        judges.step()
        criterion(judge(maker(torch.randn(4, 4)).expand(4, 4)), torch.zeros(4, 1)).backward()
        makers.step()
    recorded = Recorded(watched)

    assert recorded.parts == [{"forward": 4, "loss": 2, "backward": 2, "optimizer": 2}] * 3


def test_batch_that_is_tried_again(watched):
    """A forward that fails and is repeated with less is one step, with both."""
    model = make_model()
    optimizer = optimizer_of(model)
    for (x,) in batches(2):
        try:
            model(x[:, :3])
        except RuntimeError:
            model(x).sum().backward()
        optimizer.step()
    recorded = Recorded(watched)

    assert recorded.parts == [STEP | {"forward": 2}] * 2


def test_loop_that_fails_leaves_nothing_to_the_next(watched):
    """A second attempt begins anew, and the first one's unfinished work is outside."""
    model = make_model()
    optimizer = optimizer_of(model)
    for is_failing in (True, False):
        try:
            for number, (x,) in enumerate(batches(3)):
                model(x).sum().backward()
                if is_failing and number == 1:
                    model("nothing")
                optimizer.step()
        except (RuntimeError, TypeError):
            continue
    recorded = Recorded(watched)

    assert recorded.parts == [STEP] * 4
    assert recorded.outside == {"data.load": 1, "forward": 2, "backward": 1}


class Endless(IterableDataset):
    """Samples without end."""

    def __iter__(self):
        while True:
            yield torch.randn(4)


def test_loop_that_is_left(watched):
    """The last step before ``break`` ends where the loop was left, not where somebody looks."""
    model = make_model()
    optimizer = optimizer_of(model)
    for number, x in enumerate(DataLoader(Endless(), batch_size=4)):
        model(x).sum().backward()
        optimizer.step()
        if number == 2:
            break
    with om.span("after"):
        pass
    recorded = Recorded(watched)

    assert recorded.parts == [STEP] * 3
    assert recorded.steps[-1].end <= recorded.named("after")[0].start


def test_compiled_model_is_one_forward(watched):
    """A graph is not broken by what watches, and its call is a forward."""
    model = make_model()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    optimizer = optimizer_of(model)
    for (x,) in batches(2):
        compiled(x).sum().backward()
        optimizer.step()
    compiled.eval()
    with torch.no_grad():
        compiled(x)
    recorded = Recorded(watched)

    assert torch._dynamo.utils.counters["graph_break"] == {}
    assert recorded.parts == [STEP] * 2
    assert len(recorded.validations) == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_captured_forward_is_seen_once(watched):
    """Capturing a CUDA graph is a forward and is not broken by it; a replay calls no module."""
    model, x = make_model().cuda(), torch.ones(4, 4, device="cuda")
    with torch.no_grad():
        expected = model(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = model(x)
        graph.replay()
    recorded = Recorded(watched)

    assert torch.allclose(y, expected)
    assert len(recorded.named("forward")) == 2


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_checkpoints_have_their_name(watched, tmp_path):
    """torch.save and distributed checkpoints, each once, outside the steps."""
    model = make_model()
    optimizer, state = optimizer_of(model), {"model": model.state_dict()}
    for number, (x,) in enumerate(batches(4)):
        model(x).sum().backward()
        optimizer.step()
        if number == 1:
            torch.save(state, tmp_path / "model.pt")
        if number == 2:
            dcp.save(state, checkpoint_id=tmp_path / "sharded")
            dcp.load(state, checkpoint_id=tmp_path / "sharded")
    recorded = Recorded(watched)

    assert recorded.parts == [STEP] * 4
    assert recorded.outside == {"checkpoint": 2, "checkpoint.load": 1}


SAFETENSORS = """
import torch

def save_file(tensors, filename, metadata=None):
    torch.save(tensors, filename)

def save_model(model, filename):
    save_file(model.state_dict(), filename)

def load_file(filename, device="cpu"):
    return torch.load(filename)
"""


def test_checkpoints_of_a_library_have_their_name(watched, tmp_path, monkeypatch):
    """Functions of safetensors, once each, imported after all else; what they call is inside."""
    (tmp_path / "safetensors").mkdir()
    (tmp_path / "safetensors" / "__init__.py").touch()
    (tmp_path / "safetensors" / "torch.py").write_text(SAFETENSORS)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("safetensors", "safetensors.torch"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    library, model = importlib.import_module("safetensors.torch"), make_model()
    library.save_file(model.state_dict(), tmp_path / "weights")
    library.save_model(model, tmp_path / "weights")
    library.load_file(tmp_path / "weights")

    assert Recorded(watched).outside == {"checkpoint": 2, "checkpoint.load": 1}


def test_optimizer_that_steps_inside_the_backward_pass(watched):
    """One optimizer for each parameter, called by its gradient's hook: their updates are seen."""
    model = make_model()
    for parameter in model.parameters():
        own = torch.optim.SGD([parameter], lr=1e-3)
        parameter.register_post_accumulate_grad_hook(lambda _, own=own: own.step())
    for _ in range(2):
        model(torch.randn(4, 4)).sum().backward()
    recorded = Recorded(watched)

    assert recorded.parts == [{"forward": 1, "backward": 1, "optimizer": 4}] * 2


def test_program_that_says_its_steps_is_believed(watched):
    """``om.step()`` in a loop that was inferred so far: what was not whole is taken back."""
    model = make_model()
    optimizer = optimizer_of(model)
    for (x,) in batches(3):
        with om.step():
            model(x).sum().backward()
            optimizer.step()
    recorded = Recorded(watched)

    assert recorded.parts == [{"forward": 1, "backward": 1, "optimizer": 1}] * 3
    assert recorded.outside == {"data.load": 3}


def test_what_the_program_times_itself_is_timed_once(watched, tmp_path):
    """``om.steps`` around a loader, and sections that are called as ours would be."""
    model = make_model()
    optimizer = optimizer_of(model)
    for (x,) in om.steps(batches(3)):
        with om.span("forward"):
            loss = model(x).sum()
        with om.span("backward"):
            loss.backward()
        with om.span("optimizer"):
            optimizer.step()
    with om.span("checkpoint"):
        torch.save(model.state_dict(), tmp_path / "model.pt")
    recorded = Recorded(watched)

    assert recorded.parts == [STEP] * 3
    assert recorded.samples == [4] * 3
    assert recorded.outside == {"checkpoint": 1}


def test_sections_of_other_names_hide_nothing(watched):
    """A section of the program shows the calls of torch inside it."""
    model = make_model()
    optimizer = optimizer_of(model)
    for (x,) in om.steps(batches(2)):
        with om.span("forward", category="forward"), om.span("work"):
            model(x).sum().backward()
        optimizer.step()
    recorded = Recorded(watched)

    assert recorded.parts == [STEP | {"forward": 2}] * 2


def test_actor_that_learns_every_second_time(watched):
    """TD3 without a loader: experience is outside, and each update of the critic is a step."""
    actor, critic = make_model(), make_model()
    actors, critics = optimizer_of(actor), optimizer_of(critic)
    for turn in range(8):
        with torch.no_grad():
            actor(torch.randn(1, 4))
        critic(torch.randn(4, 4)).sum().backward()
        critics.step()
        if turn % 2 == 0:
            critic(actor(torch.randn(4, 4)).expand(4, 4)).sum().backward()
            actors.step()
    recorded = Recorded(watched)

    one = {"forward": 1, "backward": 1, "optimizer": 1}
    both = {"forward": 3, "backward": 2, "optimizer": 2}
    assert recorded.parts == [both, one] * 4
    assert recorded.outside == {"forward": 8}
    assert not recorded.validations


def test_batches_that_a_resumed_training_skips(watched):
    """Their waits are outside; the first step has one, as all have."""
    model = make_model()
    optimizer = optimizer_of(model)
    for number, (x,) in enumerate(batches(6)):
        if number < 3:
            continue
        model(x).sum().backward()
        optimizer.step()
    recorded = Recorded(watched)

    assert recorded.parts == [STEP] * 3
    assert recorded.samples == [4] * 3
    assert recorded.outside == {"data.load": 3}


class OwnIterator(_SingleProcessDataLoaderIter):
    def __next__(self):
        return super().__next__()


class OwnLoader(DataLoader):
    """Has iterators of its own, which ask torch's, as StatefulDataLoader of torchdata."""

    def _get_iterator(self):
        return OwnIterator(self)


def test_loader_with_iterators_of_its_own(watched):
    """It is told who asks all the same: one that is a batch ahead, and one that skips."""
    model = make_model()
    optimizer, data = optimizer_of(model), TensorDataset(torch.randn(24, 4))
    for (x,) in Shard(OwnLoader(data, batch_size=4)):
        model(x).sum().backward()
        optimizer.step()
    for number, (x,) in enumerate(OwnLoader(data, batch_size=4)):
        if number < 3:
            continue
        model(x).sum().backward()
        optimizer.step()
    recorded = Recorded(watched)

    assert recorded.parts == [STEP] * 9
    assert recorded.samples == [4] * 9
    assert recorded.outside == {"data.load": 3}


def test_batches_that_are_gathered_and_copied_are_the_step_s(watched):
    """What the loader gave is gone before the first forward, its copies are not."""
    model = make_model()
    optimizer = optimizer_of(model)
    for _ in range(2):
        iterator = iter(batches(6))
        for _ in range(2):
            for x in [next(iterator)[0].clone() for _ in range(3)]:
                model(x).sum().backward()
            optimizer.step()
    recorded = Recorded(watched)

    three = {"data.load": 3, "forward": 3, "backward": 3, "optimizer": 1}
    assert recorded.parts == [three] * 4


def test_settings_leave_out_what_is_watched(train):
    """Sections of an untouched loop, too; its steps and waits are found all the same."""
    trained, integration = train(exclude="forward", aggregate="backward"), TorchLoop()
    integration.switch_on(torch)
    try:
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for (batch,) in DataLoader(TensorDataset(torch.randn(6, 4)), batch_size=2):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
        trained.run.stop()
    finally:
        integration.switch_off()

    names = [section.name for section in trained.sections()]
    assert names.count("train.step") == 3
    assert names.count("optimizer") == 3
    assert names.count("data.load") >= 3
    assert not {"forward", "backward"} & set(names)


def evaluate(model, loader):
    """As programs write it."""
    model.eval()
    with torch.no_grad():
        for (x,) in loader:
            model(x)
    model.train()


def train_on(model, optimizer, loader):
    for (x,) in loader:
        model(x).sum().backward()
        optimizer.step()


def test_evaluations_in_a_row_are_a_validation_each(watched):
    """Each begins where the model is switched to evaluation, and has the batches of its loader."""
    model = make_model()
    train_on(model, optimizer_of(model), batches(3))
    evaluate(model, batches(3))
    evaluate(model, batches(2))
    recorded = Recorded(watched)

    inside = [
        [wait for wait in recorded.named("data.load") if one.start <= wait.start < one.end]
        for one in recorded.validations
    ]
    assert [len(waits) for waits in inside] == [3, 2]
    assert recorded.parts == [STEP] * 3


def test_loaders_of_one_evaluation_are_one_validation(watched):
    """The model is switched once."""
    model = make_model()
    train_on(model, optimizer_of(model), batches(3))
    evaluate(model, itertools.chain(batches(3), batches(2)))

    assert len(Recorded(watched).validations) == 1


def test_statistics_of_normalization_layers_are_no_validation(watched):
    """Their pass over the loader is a section of its own, and the validation after it another."""
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    average = torch.optim.swa_utils.AveragedModel(model)
    train_on(model, optimizer_of(model), batches(3))
    torch.optim.swa_utils.update_bn(batches(3), average)
    evaluate(average, batches(2))
    recorded = Recorded(watched)

    (statistics,), (validation,) = recorded.named("update_bn"), recorded.validations
    assert statistics.end <= validation.start
    assert recorded.parts == [STEP] * 3


ENGINE = """
class Engine:
    def __init__(self, process):
        self.process, self.after = process, None

    def run(self, data):
        for batch in data:
            self.process(batch)
        if self.after is not None:
            self.after()
"""


def test_evaluators_inside_a_trainer_are_a_validation_each(watched, tmp_path, monkeypatch):
    """Of ignite, whose evaluators switch the model for each batch."""
    place = tmp_path / "ignite" / "engine"
    place.mkdir(parents=True)
    (place / "engine.py").write_text(ENGINE)
    monkeypatch.syspath_prepend(tmp_path)
    engine = importlib.import_module("ignite.engine.engine").Engine
    model = make_model()
    optimizer = optimizer_of(model)

    def update(batch):
        model.train()
        model(batch[0]).sum().backward()
        optimizer.step()

    @torch.no_grad()
    def infer(batch):
        model.eval()
        model(batch[0])

    trainer = engine(update)
    trainer.after = lambda: [engine(infer).run(batches(2)), engine(infer).run(batches(1))]
    loader = batches(3)
    for _ in range(2):
        trainer.run(loader)
    for name in [name for name in sys.modules if name.startswith("ignite")]:
        del sys.modules[name]
    recorded = Recorded(watched)

    assert len(recorded.validations) == 4
    assert recorded.parts == [STEP] * 6


def test_phase_around_rollouts_contains_them(watched):
    """The step before has ended with its update, and is not around the phase."""
    model = make_model()
    optimizer = optimizer_of(model)
    for _ in range(3):
        with om.phase("predict"), torch.no_grad():
            model.eval()
            for _ in range(2):
                model(torch.ones(1, 4))
            model.train()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    recorded = Recorded(watched)

    played = [
        [one for one in recorded.named("forward") if phase.start <= one.start < phase.end]
        for phase in recorded.named("predict")
    ]
    assert [len(forwards) for forwards in played] == [2, 2, 2]
    assert all(step.end <= phase.start or phase.end <= step.start
               for step in recorded.steps for phase in recorded.named("predict"))  # fmt: skip
    parents = {one.parent for forwards in played for one in forwards}
    assert parents == {phase.span for phase in recorded.named("predict")}
    assert not recorded.validations
