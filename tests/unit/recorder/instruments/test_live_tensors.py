"""``memory_growth()`` reports PyTorch's tensors."""

from __future__ import annotations

import gc

import pytest

import otel_mlperf as om

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def _quiet():
    """What is there already is not looked at, which would take seconds."""
    gc.collect()
    gc.freeze()


def tensors_of(growth):
    return {row.name: row for row in growth.rows if row.what == "tensor"}


def test_tensors(recording):
    """Their memory counts once, by what it holds; one that keeps its graph says so."""
    weight = torch.nn.Parameter(torch.ones(3))
    point = om.memory_point()
    kept = [torch.zeros(5, 1000) for _ in range(4)]
    views = [one[2] for one in kept]
    total = (weight * 2).sum()
    growth = om.memory_growth(point)
    tensors = tensors_of(growth)
    assert (len(views), total.item()) == (4, 6)
    whole = tensors["float32 [5, 1000] on cpu"]
    assert (whole.count, whole.bytes) == (4, 80_000)
    assert tensors["float32 [] on cpu, with its graph"].count == 1
    assert "float32 [1000] on cpu" not in tensors
    assert growth.tensor_bytes >= 80_004
    assert not any("UntypedStorage" in row.name for row in growth.rows)


def test_tensors_of_other_classes(recording):
    """A class of the program that takes over what tensors answer is not asked; sparse ones pass."""

    class Own(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            raise AssertionError(func)

    point = om.memory_point()
    own = torch.Tensor._make_subclass(Own, torch.zeros(1000))
    sparse = torch.eye(3).to_sparse()
    growth = om.memory_growth(point)
    (row,) = (row for name, row in tensors_of(growth).items() if name.endswith("Own on cpu"))
    assert (row.count, row.bytes) == (1, 4000)
    assert (type(own), sparse.is_sparse) == (Own, True)
    assert growth.missing == []
