"""torch.compile is not disturbed, by the decorator nor by the block."""

from __future__ import annotations

import pytest
import torch

import otel_mlperf as om


class Model(torch.nn.Module):
    """Uses every name inside the part that is compiled."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        with om.span("block"):
            x = self.linear(x)
        with om.span("more", layer=3, category="io") as section:
            section.set(rows=2)
            x = torch.relu(x)
        with om.span("lookup", aggregate=True), om.phase("test"), om.epoch(1), om.step():
            x = helper(x)
        om.log(loss=x.sum())
        om.mark_step()
        return x


@om.span
def helper(x):
    """A decorated function that the compiled code calls."""
    return 2 * x + 1


@om.step
def stepped(x):
    """A decorated step."""
    return x - 1


@pytest.mark.fault("F54")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("is_on", [True, False])
def test_fullgraph(start, backend, is_on):
    """``fullgraph=True`` compiles, gives the same numbers bit by bit, and records no part."""
    recording = start()
    if not is_on:
        om.stop()
    torch._dynamo.reset()
    model, x = Model(), torch.rand(3, 4)
    plain = Model()
    plain.load_state_dict(model.state_dict())
    compiled = torch.compile(model, backend=backend, fullgraph=True)

    results = [compiled(x) for _ in range(3)]
    found = [row.name for row in recording.sections()]

    assert all(torch.equal(result, plain(x)) for result in results)
    assert [name for name in found if name not in ("run", "train.step", "compile")] == []


@pytest.mark.fault("F54")
def test_decorator_around_compiled(recording):
    """A section around a compiled function is recorded."""
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: 2 * x, backend="eager", fullgraph=True)

    @om.span
    def forward(x):
        return compiled(x)

    assert torch.equal(forward(torch.ones(2)), torch.full((2,), 2.0))
    assert recording.one("forward")


@pytest.mark.fault("F54")
def test_decorated_functions_compile(recording):
    """Decorated functions themselves are compiled through."""
    torch._dynamo.reset()
    for function in (helper, stepped):
        compiled = torch.compile(function, backend="eager", fullgraph=True)
        assert torch.equal(compiled(torch.ones(2)), function.__wrapped__(torch.ones(2)))


@pytest.mark.fault("F54")
def test_export(recording):
    """A model with sections inside can be exported."""

    class Small(torch.nn.Module):
        def forward(self, x):
            with om.span("block"):
                return helper(x)

    program = torch.export.export(Small(), (torch.ones(2),))

    assert torch.equal(program.module()(torch.ones(2)), torch.full((2,), 3.0))


@pytest.mark.fault("F54")
def test_gradients(recording):
    """Backward through a compiled model with sections gives the same gradients."""
    torch._dynamo.reset()
    model = Model()
    x = torch.rand(3, 4)
    torch.compile(model, backend="aot_eager", fullgraph=True)(x).sum().backward()
    compiled = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(x).sum().backward()

    assert all(torch.equal(a, p.grad) for a, p in zip(compiled, model.parameters(), strict=True))
