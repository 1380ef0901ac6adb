"""The number of planned steps, derived from lengths that are free to query.

Lengths are read only from objects that are known to respond without running code of the program:
builtin sequences, and batch samplers of PyTorch's loaders (a loader may warn after ``len()``).
"""

from __future__ import annotations

import operator
from typing import Any, Final

_SEQUENCES: Final = (range, list, tuple)
_ITERATORS: Final[tuple[type, ...]] = (type(iter(range(1))), type(iter([])), type(iter(())))
_LOADERS: Final = "torch.utils.data"


def find_left(iterator: Any) -> int | None:
    """Return the number of items an iterator still has; None if its type is unknown."""
    return operator.length_hint(iterator) if type(iterator) in _ITERATORS else None


def find_batches(iterable: Any) -> int | None:
    """Return the number of batches of a pass; None if unknown."""
    if type(iterable) in _SEQUENCES:
        return len(iterable)
    if any(base.__module__.startswith(_LOADERS) for base in type(iterable).__mro__):
        try:
            return len(iterable.batch_sampler)
        except TypeError:  # it has no batch sampler, or its dataset has no length
            return None
    return None
