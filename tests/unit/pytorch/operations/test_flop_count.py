"""Operations equal those counted by hand, and the program does not notice the counting."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from otel_mlperf.pytorch.operations.flop_count import (
    Flops,
    count_flops,
    count_operators,
    describe_call,
    sum_flops,
)
from otel_mlperf.pytorch.operations.module_twin import UncountableError


def counted(model, *args, **kwargs):
    return count_flops(model, describe_call(model, args, kwargs, torch), torch)


def product(rows, inner, columns):
    """A matrix product: each element of the result is a sum of ``inner`` products."""
    return 2 * rows * inner * columns


def test_a_perceptron_by_hand():
    """Two products forward; backward those of both weights, and that of the inner activations."""
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 7))
    first, second = product(5, 20, 30), product(5, 30, 7)

    assert counted(model, torch.randn(5, 20)) == Flops(first + second, first + 2 * second)


def test_by_operator_the_same_operations():
    """Those of a convolution and of a product apart, forward and backward, most first."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 14 * 14, 10, bias=False))
    batch = torch.randn(2, 3, 16, 16)
    pixels, last = 2 * 2 * (14 * 14) * 8 * (3 * 3 * 3), product(2, 8 * 14 * 14, 10)
    found = count_operators(model, describe_call(model, (batch,), {}, torch), torch)

    assert found == {
        "aten.convolution": Flops(pixels, 0),
        "aten.convolution_backward": Flops(0, pixels),
        "aten.mm": Flops(last, 2 * last),
    }
    assert [of.total for of in found.values()] == sorted(
        (of.total for of in found.values()), reverse=True
    )
    assert sum_flops(found) == counted(model, batch)


def test_a_convolutional_net_by_hand():
    """Each pixel of a result sums over the kernel and the channels; backward as of products."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 5, stride=2, padding=1), nn.Flatten(),
        nn.Linear(4 * 6 * 6, 10),
    )  # fmt: skip
    batch = 2
    first = 2 * batch * (14 * 14) * 8 * (3 * 3 * 3)
    second = 2 * batch * (6 * 6) * 4 * (5 * 5 * 8)
    last = product(batch, 4 * 6 * 6, 10)
    found = counted(model, torch.randn(batch, 3, 16, 16))

    assert found.forward == first + second + last
    assert found.backward == first + 2 * second + 2 * last


class Block(nn.Module):
    """A block of a transformer, with as many heads as it is told."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        batch, length, width = x.shape
        split = (batch, length, self.heads, width // self.heads)
        q, k, v = (one.view(split).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        scores = (q @ k.transpose(-1, -2)).softmax(-1)
        x = self.norm(x + self.out((scores @ v).transpose(1, 2).reshape(x.shape)))
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


def test_a_block_of_a_transformer_by_hand():
    """Twelve products of width and width for each token, and two of attention for each pair."""
    batch, length, width, heads = 2, 6, 16, 4
    model = Block(width, heads)
    weights = product(batch * length, width, 12 * width)
    attention = 2 * product(batch * heads * length, width // heads, length)

    found = counted(model, torch.randn(batch, length, width, requires_grad=True))

    assert found.forward == weights + attention
    assert found.backward == 2 * (weights + attention)


def test_six_operations_of_a_parameter_and_token():
    """What 6ND says of a transformer is its count without attention."""
    width, tokens = 16, 2 * 6
    model = Block(width, 4)
    multiplying = sum(one.numel() for one in model.parameters() if one.dim() == 2)
    found = counted(model, torch.randn(2, 6, width, requires_grad=True))
    attention = 2 * product(2 * 4 * 6, 4, 6)

    assert found.total - 3 * attention == 6 * multiplying * tokens


def test_what_is_frozen_takes_no_backward_pass():
    """Nor does anything where gradients are switched off."""
    model = nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 7))
    model[0].requires_grad_(False)
    x = torch.randn(5, 20)

    assert counted(model, x).backward == product(5, 30, 7)
    with torch.no_grad():
        assert counted(model, x).backward == 0


def test_the_backward_pass_starts_at_the_loss():
    """Where a model gives one, as those of transformers do; what it gives beside it takes none."""

    class WithLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, x, labels=None):
            y = self.body(x)
            return {"loss": (y - labels).sum(), "logits": self.head(y)}

    found = counted(WithLoss(), x=torch.randn(3, 8), labels=torch.randn(3, 8))

    assert found == Flops(product(3, 8, 8) + product(3, 8, 4), product(3, 8, 8))


class Talkative(nn.Module):
    """Prints, draws, counts and keeps what it sees."""

    seen = 0

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.kept, self.last, self.calls = [], None, 0

    def forward(self, x):
        print("forward")
        random.random()
        np.random.rand()
        self.calls += 1
        self.kept.append(x)
        self.last = y = self.norm(self.linear(x)) + torch.rand(4)
        return torch.dropout(y, 0.5, True)


def test_nothing_of_the_program_changes(capsys):
    """Neither model nor gradients, random streams, what hooks hear, nor what is printed."""
    model = Talkative()
    heard = []
    model.linear.register_forward_hook(lambda *_: heard.append(1))
    streams = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    state = {name: value.clone() for name, value in model.state_dict().items()}

    found = counted(model, torch.randn(3, 4, requires_grad=False).fill_(1.0))

    assert found.forward == product(3, 4, 4)
    assert (model.calls, model.kept, model.last, heard) == (0, [], None, [])
    assert all(one.grad is None for one in model.parameters())
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert random.getstate() == streams[0]
    assert np.random.get_state()[1].tolist() == streams[1]
    assert capsys.readouterr().out == ""
    print("heard again")
    assert capsys.readouterr().out == "heard again\n"


def test_tied_weights_stay_one():
    """Their gradient is that of one tensor, as in the model."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight

    assert counted(model, torch.randn(2, 4)).backward == 3 * product(2, 4, 4)


class Choosing(nn.Module):
    """Looks at the content of its input."""

    def forward(self, x):
        return x * 2 if x.sum().item() > 0 else x


@pytest.mark.parametrize(
    ("model", "argument", "why"),
    [
        (Choosing(), torch.ones(2), "DataDependentOutputException"),
        (nn.LSTM(4, 4), torch.ones(2, 3, 4), "LSTM"),
        (nn.Identity(), object(), "one of its arguments is a object"),
    ],
)
def test_what_cannot_be_counted_is_said(model, argument, why):
    """A number that would be wrong is not given."""
    with pytest.raises(UncountableError, match=why):
        counted(model, argument)


def test_autocast_is_that_of_the_call():
    """A model that mixes types under it is counted as it was called."""

    class Mixing(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            return self.linear(x.to(torch.bfloat16))

    model = Mixing()
    with torch.autocast("cpu", torch.bfloat16):
        call = describe_call(model, (torch.ones(2, 4),), {}, torch)

    assert count_flops(model, call, torch).forward == product(2, 4, 4)
