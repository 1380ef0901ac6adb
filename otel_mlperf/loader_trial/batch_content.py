"""How large is a batch?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

_DEEPEST: Final = 8


def count_bytes(batch: Any, depth: int = _DEEPEST) -> int:
    """Bytes of the tensors and arrays in it; a text or number counts nothing."""
    size = getattr(batch, "nbytes", None)
    if isinstance(size, int):
        return size
    if depth == 0 or isinstance(batch, str | bytes):
        return 0
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    elif not isinstance(batch, list | tuple | set):
        batch = list(getattr(batch, "__dict__", {}).values())  # a dataclass, say
    parts: Iterable[Any] = batch
    return sum(count_bytes(part, depth - 1) for part in parts)
