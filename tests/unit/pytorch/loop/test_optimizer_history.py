"""The possible size of an optimizer's history is recorded."""

from __future__ import annotations

import torch

from otel_mlperf import names
from otel_mlperf.pytorch.loop.training_moments import history_bytes

HISTORY = names.OPTIMIZER_HISTORY.name


def test_the_history_of_lbfgs_is_bounded_by_what_is_said():
    """When it is full, what it holds is as much as was said before it held anything."""
    model = torch.nn.Linear(64, 3)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1e-3, history_size=4)
    said = history_bytes(optimizer)
    x, y = torch.randn(32, 64), torch.randn(32, 3)

    def closure():
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)

    (state,) = optimizer.state.values()
    held = [*state["old_dirs"], *state["old_stps"]]
    assert len(held) == 2 * 4
    assert said == sum(one.numel() * one.element_size() for one in held)


def test_others_have_none():
    """Their state does not grow."""
    (weight,) = (torch.ones(3, requires_grad=True),)

    assert history_bytes(torch.optim.Adam([weight])) == 0
    assert history_bytes(object()) == 0


def test_it_is_recorded_at_the_second_update(watched):
    """The first may be another optimizer's, that is tried out."""
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight], history_size=10)

    def closure():
        optimizer.zero_grad()
        loss = (weight**2).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    before = watched.counted(HISTORY)
    optimizer.step(closure)

    assert (before, watched.counted(HISTORY)) == (0.0, 2 * 10 * 3 * 4)


def test_an_optimizer_without_is_not_recorded(watched):
    """A metric of nothing would only take room."""
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(3):
        (weight**2).sum().backward()
        optimizer.step()

    assert watched.counted(HISTORY) == 0.0
