"""Live objects of this process: count and size per type.

Objects that the garbage collector tracks are counted, and untracked objects to which tracked ones
refer: text, numbers, NumPy arrays. No code of the program is called: types are compared by
identity, type names are read from the interpreter's data, and sizes come from C code only. Except
for tensors, no reference to an object is kept.
"""

from __future__ import annotations

import gc
import sys
from types import MethodDescriptorType
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf.foreign_errors import raise_foreign

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_ATTRIBUTES: Final = type.__dict__["__dict__"].__get__
_BASES: Final = type.__dict__["__mro__"].__get__
_MODULE: Final = type.__dict__["__module__"].__get__
_QUALIFIED: Final = type.__dict__["__qualname__"].__get__
_CHUNK: Final = 1000
"""Number of objects whose references are queried in one call; single queries are half as fast."""


class _Kind:
    __slots__ = ("bytes", "count", "is_array", "is_tensor", "name", "size_of")

    def __init__(self, kind: type, tensor: type | None, array: type | None) -> None:
        self.name = _name(kind)
        self.size_of = _size_of(kind)
        self.is_tensor = tensor is not None and type.__subclasscheck__(tensor, kind)
        self.is_array = array is not None and type.__subclasscheck__(array, kind)
        self.count = self.bytes = 0


class LiveObjects:
    """Count of the live objects at one moment.

    Args:
        hidden: a type of objects to ignore, with the untracked objects to which only these refer.
    """

    def __init__(self, hidden: type) -> None:
        self._kinds: dict[int, _Kind] = {}
        self._seen: set[int] = set()
        self._hidden = hidden
        self._tensor = _class_of("torch", "Tensor")
        self._array: Any = _class_of("numpy", "ndarray")
        self.tensors: list[Any] = []
        """PyTorch's tensors, found by ``count``; the caller must release the references."""

    def count(self) -> dict[str, list[int]]:
        """Return number and size in bytes (without referents) of live objects, by type name."""
        known = gc.get_objects()
        for at in range(0, len(known), _CHUNK):
            some = [one for one in known[at : at + _CHUNK] if type(one) is not self._hidden]
            while some:
                some = self._unseen([*gc.get_referents(*some), *self._add(some)])
                self._seen.update(map(id, some))
        found: dict[str, list[int]] = {}
        for kind in self._kinds.values():
            total = found.setdefault(kind.name, [0, 0])
            total[0] += kind.count
            total[1] += kind.bytes
        return found

    def _unseen(self, referents: Iterable[Any]) -> list[Any]:
        """Return the untracked objects among ``referents`` that are not counted yet, each once."""
        found = {id(one): one for one in referents if not gc.is_tracked(one)}
        for known in found.keys() & self._seen:
            del found[known]
        return [*found.values()]

    def _add(self, some: list[Any]) -> list[Any]:
        """Count the objects in ``some``; return the base (or None) of each NumPy array in it."""
        bases = []
        for one in some:
            key = id(type(one))
            kind = self._kinds.get(key)
            if kind is None:
                kind = self._kinds[key] = _Kind(type(one), self._tensor, self._array)
            kind.count += 1
            try:
                kind.bytes += kind.size_of(one)
            except Exception as error:  # noqa: BLE001 - it counts all the same
                raise_foreign(error)
            if kind.is_tensor:
                self.tensors.append(one)
            elif kind.is_array:
                bases.append(self._array.base.__get__(one))
        return bases


def _class_of(module: str, name: str) -> type | None:
    found = getattr(sys.modules.get(module), name, None)
    return found if isinstance(found, type) else None


def _name(kind: type) -> str:
    module, name = _MODULE(kind), str(_QUALIFIED(kind))
    # A class may have any object as ``__module__``.
    return name if type(module) is not str or module == "builtins" else f"{module}.{name}"


def _size_of(kind: type) -> Callable[[Any], int]:
    """Return a function for the size of objects of ``kind`` that runs no code of the program."""
    is_own = True
    for base in _BASES(kind):
        found = _ATTRIBUTES(base).get("__sizeof__")
        if type(found) is MethodDescriptorType:
            return sys.getsizeof if is_own else found
        is_own = is_own and found is None
    return sys.getsizeof
