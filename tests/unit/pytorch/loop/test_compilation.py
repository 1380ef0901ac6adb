"""Each compilation is a section where it happens, and compiled code is left unchanged."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch._dynamo.utils import counters

import otel_mlperf as om
from otel_mlperf.pytorch.loop import compilation


@pytest.fixture(autouse=True)
def forgotten():
    """Nothing that other tests have compiled."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def double(x):
    return 2 * x


def test_each_compilation_is_a_section_of_what_waits_for_it(train):
    """The second size is compiled anew, a third call with it is not; ids are TorchDynamo's."""
    trained = train()
    call = torch.compile(double, backend="eager", dynamic=False)
    for size in (2, 3, 3):
        with om.span("forward"):
            call(torch.ones(size))

    forwards, compilations = trained.sections("forward"), trained.sections("compile")
    assert [one.payload["a"]["pytorch.compile.id"] for one in compilations] == ["0/0", "0/1"]
    assert {one.payload["a"]["pytorch.compile.reason"] for one in compilations} == {"dynamo"}
    for forward, compiled in zip(forwards, compilations, strict=False):
        assert forward.start <= compiled.start < compiled.end <= forward.end


def test_what_is_compiled_stays_the_same(train):
    """One graph without breaks, and gradients equal bit by bit those without a recording."""

    def gradients():
        torch._dynamo.reset()
        counters.clear()
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.Linear(8, 2)
        )
        torch.compile(model, backend="aot_eager", fullgraph=True)(torch.rand(3, 4)).sum().backward()
        assert not counters["graph_break"]
        return [*(parameter.grad for parameter in model.parameters()), torch.rand(1)]

    plain = gradients()
    trained = train()
    seen = gradients()

    assert all(map(torch.equal, plain, seen))
    assert trained.sections("compile")


def test_reset_forgets_nobody(train):
    """``torch._dynamo.reset`` forgets whom it calls; what is compiled afterwards is seen."""
    trained = train()
    for _ in range(2):
        torch._dynamo.reset()
        torch.compile(double, backend="eager")(torch.ones(2))

    assert len(trained.sections("compile")) == 2


def test_failure_stays_the_compilers(train):
    """The error is the backend's, the section ends, and what follows is not inside it."""

    def broken(graph, inputs):
        raise RuntimeError("no such device")

    trained = train()
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="no such device"):
        torch.compile(double, backend=broken)(torch.ones(2))
    with om.span("after"):
        pass

    (compiled,), (after,) = trained.sections("compile"), trained.sections("after")
    assert compiled.end <= after.start


@pytest.mark.parametrize("setting", ["exclude", "aggregate"])
def test_settings_choose(train, setting):
    """Left out or only added up as other sections are."""
    trained = train(**{setting: "compile"})
    torch.compile(double, backend="eager")(torch.ones(2))

    assert trained.sections("compile") == []


def test_torch_that_does_not_call(train, said, monkeypatch):
    """A TorchDynamo without callbacks is told of once, and not again."""
    monkeypatch.setattr(compilation, "_watch", None)
    train()
    for _ in range(2):
        compilation.watch_compilation(SimpleNamespace())

    assert len(said()) == 1
