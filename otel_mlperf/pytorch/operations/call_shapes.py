"""Shapes of a model call that determine its number of operations, for comparing calls.

They consist of shapes, types and plain values, never of the content of a tensor, and keep no
tensor alive.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final, NamedTuple


class UncountableError(Exception):
    """Error: the operations of a call cannot be counted; the message contains the reason."""


class TensorShape(NamedTuple):
    """A tensor without its content."""

    shape: tuple[int, ...]
    type: Any
    device: Any
    requires_grad: bool


class Items(NamedTuple):
    """Items of a list, a tuple or a mapping."""

    kind: type
    of: tuple[Any, ...]
    keys: tuple[Hashable, ...] = ()


_PLAIN: Final = (bool, int, float, str, bytes, type(None))


def shape_of(value: Any, torch: Any) -> Any:
    """Return the relevant part of an argument, as a hashable value.

    Raises:
        UncountableError: it is not a tensor, a plain value or a container of them: a cache that the
            model writes to, for example, must not see a call that was never made.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return TensorShape(tuple(value.shape), value.dtype, value.device, value.requires_grad)
    if kind in (list, tuple):
        return Items(kind, tuple([shape_of(one, torch) for one in value]))
    if isinstance(value, Mapping):
        return Items(dict, tuple([shape_of(one, torch) for one in value.values()]), tuple(value))
    if kind in (torch.dtype, torch.device, torch.Size):
        return value
    raise UncountableError(f"one of its arguments is a {kind.__name__}")


def made_again(shape: Any, make: Callable[[TensorShape], Any]) -> Any:
    """Return arguments of that shape; ``make`` makes the tensors."""
    if isinstance(shape, TensorShape):
        return make(shape)
    if isinstance(shape, Items):
        items = [made_again(one, make) for one in shape.of]
        return (
            dict(zip(shape.keys, items, strict=True)) if shape.kind is dict else shape.kind(items)
        )
    return shape
