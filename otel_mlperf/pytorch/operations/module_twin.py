"""Twins of modules, which run a model's code without its data, and the shapes of model calls.

A twin consists of modules of the same classes, whose tensors have shapes and types but no content.
Nothing is computed, no device memory is used, and assignments to ``self`` go to the twin. Hooks are
not called: they belong to the program's own calls. What the twin prints is dropped, and random
streams are restored afterwards.

Calls are compared by shapes, types and plain values, never by the content of a tensor, and no
tensor is kept alive.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Hashable, Mapping
from contextlib import contextmanager
from types import MethodType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


class UncountableError(Exception):
    """Error for a call whose operations cannot be counted; the message contains the reason."""


class TensorShape(NamedTuple):
    """Shape, type and device of a tensor, without its content."""

    shape: tuple[int, ...]
    type: Any
    device: Any
    requires_grad: bool


class Items(NamedTuple):
    """Items of a list, a tuple or a mapping. ``keys`` is empty for a list or a tuple."""

    kind: type
    of: tuple[Any, ...]
    keys: tuple[Hashable, ...] = ()


_PLAIN: Final = (bool, int, float, str, bytes, type(None))


def shape_of(value: Any, torch: Any) -> Any:
    """Return the shapes, types and plain values of an argument, as a hashable value.

    Raises:
        UncountableError: the argument is not a tensor, a plain value or a container of such values.
            An example is a cache that the model writes to, which the additional run must not
            change.
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
    """Recreate arguments from ``shape``, a result of ``shape_of``; ``make`` creates each tensor."""
    if isinstance(shape, TensorShape):
        return make(shape)
    if isinstance(shape, Items):
        items = [made_again(one, make) for one in shape.of]
        return (
            dict(zip(shape.keys, items, strict=True)) if shape.kind is dict else shape.kind(items)
        )
    return shape


class _Muted:
    """Output stream that drops the output of one thread while muted."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._thread = stream, threading.get_ident()
        self.is_over = False

    def write(self, text: str) -> Any:
        if not self.is_over and threading.get_ident() == self._thread:
            return len(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def unnoticed(torch: Any) -> Iterator[None]:
    """Drop what this thread prints inside the context, and restore random streams afterwards.

    These are the streams of Python, of numpy if it is loaded, and of PyTorch for CPUs. Streams of
    other devices do not change, because no device computes anything.
    """
    before = _streams(torch)
    out = sys.stdout, sys.stderr
    muted = _Muted(sys.stdout), _Muted(sys.stderr)
    sys.stdout, sys.stderr = muted
    try:
        yield
    finally:
        # Code that has kept a reference to a muted stream continues to write through it.
        for stream in muted:
            stream.is_over = True
        if (sys.stdout, sys.stderr) == muted:
            sys.stdout, sys.stderr = out
        _put_back(torch, before)


def _streams(torch: Any) -> tuple[Any, Any, Any]:
    numpy = sys.modules.get("numpy")
    drawn = numpy.random.get_state() if numpy is not None else None
    return random.getstate(), drawn, torch.get_rng_state()


def _put_back(torch: Any, before: tuple[Any, Any, Any]) -> None:
    """Restore only random streams that have changed: other threads might be using the others."""
    own, drawn, of_torch = before
    if random.getstate() != own:
        random.setstate(own)
    numpy = sys.modules.get("numpy")
    if numpy is not None and drawn is not None:
        now = numpy.random.get_state()
        if now[2:] != drawn[2:] or not numpy.array_equal(now[1], drawn[1]):
            numpy.random.set_state(drawn)
    if not torch.equal(torch.get_rng_state(), of_torch):
        torch.set_rng_state(of_torch)


_WRAPPERS: Final = {"OptimizedModule": "_orig_mod", "DistributedDataParallel": "module",
                    "DataParallel": "module"}  # fmt: skip
"""Classes that call another module, and the attribute that contains it."""
_HOOKS: Final = "_hooks"
_UNCOUNTED: Final = ("RNNBase", "ScriptModule")


def unwrapped(module: Any) -> Any:
    """Return the module inside wrappers of ``torch.compile`` or DDP; ``module`` if not wrapped."""
    while (inner := _WRAPPERS.get(type(module).__name__)) is not None:
        module = getattr(module, inner)
    return module


def twin_of(module: Any, torch: Any, fake: Callable[[Any], Any]) -> Any:
    """Return a twin of ``module``. ``fake`` returns a tensor's twin, always the same for a tensor.

    Raises:
        UncountableError: the operations would be miscounted, or no twin can be made.
    """
    return _Twins(torch, fake).of(unwrapped(module))


class _Twins:
    def __init__(self, torch: Any, fake: Callable[[Any], Any]) -> None:
        self._torch, self._fake = torch, fake
        self._known: dict[int, Any] = {}

    def of(self, module: Any) -> Any:
        known = self._known.get(id(module))
        if known is not None:
            return known
        kinds = {kind.__name__ for kind in type(module).__mro__}
        if refused := kinds.intersection(_UNCOUNTED):
            raise UncountableError(f"it has a {type(module).__name__} ({min(refused)})")
        kind: Any = type(module)
        twin = kind.__new__(kind)
        self._known[id(module)] = twin
        state = {name: self._value(name, value, module, twin)
                 for name, value in vars(module).items()}  # fmt: skip
        vars(twin).update(state)
        return twin

    def _value(self, name: str, value: Any, module: Any, twin: Any) -> Any:
        if name == "_compiled_call_impl":
            return None
        if name.endswith(_HOOKS) and isinstance(value, dict):
            return type(value)()
        if isinstance(value, MethodType) and value.__self__ is module:
            return MethodType(value.__func__, twin)
        if type(value) in (dict, list, set):  # also ``_parameters``, ``_buffers``, ``_modules``
            return self._container(value)
        return self._one(value)

    def _container(self, value: Any) -> Any:
        """Copy a container, so that the twin cannot add items to the program's container."""
        if isinstance(value, dict):
            return {name: self._one(one) for name, one in value.items()}
        return type(value)(map(self._one, value))

    def _one(self, value: Any) -> Any:
        if isinstance(value, self._torch.nn.Module):
            return self.of(value)
        if isinstance(value, self._torch.Tensor):
            if type(value) not in (self._torch.Tensor, self._torch.nn.Parameter):
                raise UncountableError(f"it has a {type(value).__name__}")
            return self._fake(value)
        return value
