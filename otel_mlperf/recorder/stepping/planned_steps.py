"""Number of planned steps, derived from lengths of iterables.

Lengths are read only from objects whose ``len()`` is known to be cheap and to run no code of the
program: builtin sequences, and batch samplers of PyTorch's loaders. ``len()`` of a loader itself is
avoided, because PyTorch may then warn.
"""

from __future__ import annotations

import operator
from typing import Any, Final

_SEQUENCES: Final = (range, list, tuple)
_ITERATORS: Final[tuple[type, ...]] = (type(iter(range(1))), type(iter([])), type(iter(())))
_LOADERS: Final = "torch.utils.data"


def find_left(iterator: Any) -> int | None:
    """Return the number of remaining items of an iterator; None if its type is unknown."""
    return operator.length_hint(iterator) if type(iterator) in _ITERATORS else None


def find_batches(iterable: Any) -> int | None:
    """Return the number of batches in one pass over a loader or sequence; None if it is unknown."""
    if type(iterable) in _SEQUENCES:
        return len(iterable)
    if any(base.__module__.startswith(_LOADERS) for base in type(iterable).__mro__):
        try:
            return len(iterable.batch_sampler)
        except TypeError:  # it has no batch sampler, or its dataset has no length
            return None
    return None
