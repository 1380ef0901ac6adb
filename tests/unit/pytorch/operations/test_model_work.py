"""Steps know what their models compute, without becoming longer, different or fewer."""

from __future__ import annotations

import copy
import pickle
import re

import pytest
import torch
from torch import nn

import otel_mlperf as om
from otel_mlperf import names
from otel_mlperf.device_peaks import DEVICES, find_peak
from otel_mlperf.errors import ConfigError


def flops_of(trained):
    """Of each step so far, in order."""
    return [step.payload.get("f") for step in trained.sections("train.step")]


def perceptron():
    return nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 4))


def loop(model, batches):
    for batch in om.steps(batches):
        model(batch).sum().backward()


OF_ONE = 2 * 8 * 16 * 2 + 2 * 16 * 4 * 3
"""Operations of a sample: no gradient of the input is needed."""


def test_steps_know_their_operations(train):
    """All but the first of each shape, which tells the shape."""
    trained, model = train(), perceptron()
    om.model_work(model)

    loop(model, [torch.ones(size, 8) for size in (4, 4, 4, 2, 4, 2)])

    assert flops_of(trained) == [None, 4 * OF_ONE, 4 * OF_ONE, None, 4 * OF_ONE, 2 * OF_ONE]


def test_all_calls_of_a_step_count(train):
    """Of several models, and several of one; where one is not known, nor is the sum."""
    trained, first, second = train(), perceptron(), nn.Linear(4, 4)
    om.model_work(first)
    om.model_work(second)
    for turn in om.steps(range(3)):
        for _ in range(2):
            second(first(torch.ones(3, 8))).sum().backward()
        if turn == 2:
            first(torch.ones(7, 8))

    # The input of the second needs a gradient, because the first learns.
    assert flops_of(trained) == [None, 2 * 3 * (OF_ONE + 2 * 4 * 4 * 3), None]


def test_what_is_not_named_does_not_count(train):
    """Nor a copy of a named one; inside a named one nothing counts twice."""
    trained, model = train(), perceptron()
    work = om.model_work(model)
    om.model_work(model[0])
    average = copy.deepcopy(model)
    for _ in om.steps(range(2)):
        model(torch.ones(1, 8)).sum().backward()
        average(torch.ones(1, 8))

    assert flops_of(trained)[1] == OF_ONE
    assert (work.parameters, work.trainable, work.embedding) == (8 * 16 + 16 + 16 * 4 + 4,) * 2 + (
        0,
    )


def test_counting_takes_no_time_of_a_step(train):
    """It is done between two; a step that nobody has said begins after it."""
    trained, model = train(), perceptron()
    om.model_work(model)
    loop(model, [torch.ones(4, 8)] * 2)
    first, second = trained.sections("train.step")

    assert first.end < trained.recorder.stepping.busy_ns <= second.start


def weights_after(train, *, is_named):
    torch.manual_seed(7)
    trained, model = train(), perceptron()
    if is_named:
        om.model_work(model)
    optimizer = torch.optim.Adam(model.parameters())
    for batch in om.steps([torch.randn(3, 8) for _ in range(6)]):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    trained.run.stop()
    return [one.detach().numpy().tobytes() for one in model.parameters()], torch.rand(3).tolist()


def test_a_training_is_bit_identical(train):
    """With dropout, which draws: weights and what is drawn next are those of a run without it."""
    assert weights_after(train, is_named=True) == weights_after(train, is_named=False)


def test_a_named_model_is_pickled_as_it_was():
    """Nothing of ours is in it: no hook, no attribute."""
    model = perceptron()
    before = pickle.dumps(model)
    om.model_work(model)

    assert pickle.dumps(model) == before


def test_a_compiled_model_counts(train):
    """Named before or after it is compiled; it is compiled once all the same."""
    trained, model = train(), perceptron()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    om.model_work(model)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()

    loop(compiled, [torch.ones(4, 8)] * 3)

    assert flops_of(trained)[1:] == [4 * OF_ONE] * 2
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


class OwnModel(nn.Module):
    """Of the program's own file: the calls around its ``forward`` are not compiled with it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x):
        return self.layer(x)


def test_a_model_compiled_beside_a_named_one(train):
    """Is compiled whole as without us: the compiler is never shown what watches calls."""
    train()
    om.model_work(nn.Linear(4, 4))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(OwnModel(), backend="eager", fullgraph=True)

    for _ in om.steps(range(2)):
        compiled(torch.ones(4, 8))

    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert not torch._dynamo.utils.counters["graph_break"]


def test_what_cannot_be_counted_is_left_out(train, said):
    """The steps go on, and the reason is said once."""
    trained, model = train(), nn.LSTM(8, 4)
    work = om.model_work(model)
    for _ in om.steps(range(3)):
        model(torch.ones(2, 3, 8))[0].sum().backward()

    assert flops_of(trained) == [None] * 3
    assert work.count(torch.ones(2, 3, 8)) is None
    assert len([text for text in said() if "the operations of LSTM cannot be counted" in text]) == 1


def test_a_model_that_nobody_names(train):
    """``model_work=True`` finds it where it is called; a loss that learns nothing is none."""
    trained, model, loss = train(model_work=True), perceptron(), nn.MSELoss()
    trained.recorder.stepping.due_ns = 0
    for _ in om.steps(range(4)):
        trained.recorder.stepping.due_ns = 0
        loss(model(torch.ones(2, 8)), torch.ones(2, 4)).backward()
    trained.run.stop()

    assert flops_of(trained)[-1] == 2 * OF_ONE


def test_size_and_peak_are_told(train):
    """Once in each run; a peak that is given stands before the table."""
    trained, model = train(peak_flops=5e12), perceptron()
    om.model_work(model)
    loop(model, [torch.ones(1, 8)] * 2)

    assert trained.counted(names.FLOPS_PEAK.name) == 5e12
    assert trained.counted(names.MODEL_PARAMETERS.name) == 2 * (8 * 16 + 16 + 16 * 4 + 4)


@pytest.mark.parametrize(
    ("device", "kind", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.5),
        ("NVIDIA H100 PCIe", "bfloat16", 756.5),
        ("NVIDIA H200", "tf32", 494.5),
        ("NVIDIA A100-SXM4-80GB", "float16", 312.0),
        ("NVIDIA A10", "bfloat16", 125.0),
        ("NVIDIA A10G", "bfloat16", None),
        ("Tesla V100-SXM2-16GB", "bfloat16", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bfloat16", None),
        ("cpu", "float32", None),
    ],
)
def test_peaks_of_devices(device, kind, tflops):
    """By PyTorch's name of them; what the table does not have is not known."""
    peak = find_peak(device, kind)

    assert (peak and peak.flops_per_s) == (tflops and tflops * 1e12)
    assert peak is None or "data sheet" in peak.source


@pytest.mark.parametrize("row", DEVICES, ids=lambda row: row.pattern)
def test_every_peak_names_the_document_that_has_it(row):
    """A data sheet of that device, by name; half precision is the faster, in all that are known."""
    product = re.sub(r"\\b|-.*", "", row.pattern).split()[0]

    assert row.source.endswith(" data sheet")
    assert product in row.source.split()
    assert all(tflops > 0 for tflops in row.tflops.values())
    assert max(row.tflops, key=row.tflops.__getitem__) in {"float16", "bfloat16"}
    if "tf32" in row.tflops:
        assert row.tflops["tf32"] == pytest.approx(row.tflops["bfloat16"] / 2, rel=0.02)


def test_wrong_arguments():
    """They are refused in one sentence."""
    with pytest.raises(ConfigError, match=r"found a int, expected a torch\.nn\.Module"):
        om.model_work(3)
    with pytest.raises(ConfigError, match="peak_flops is 0"):
        om.model_work(nn.Linear(1, 1), peak_flops=0)
