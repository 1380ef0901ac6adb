"""How much memory may what an optimizer remembers come to?

L-BFGS keeps the last directions and gradients of all its parameters, ``history_size`` of each: its
memory grows for as many iterations, and then no more.
"""

from __future__ import annotations

from typing import Any, Final

_KEPT: Final = 2
"""A direction and a difference of gradients for each iteration."""


def history_bytes(optimizer: Any) -> int:
    """Of all its groups, in the host's memory; 0 of an optimizer that keeps no history."""
    return sum(_of_group(group) for group in getattr(optimizer, "param_groups", ()))


def _of_group(group: dict[str, Any]) -> int:
    size = group.get("history_size")
    if not isinstance(size, int):
        return 0
    held: int = sum(one.numel() * one.element_size() for one in group["params"] if one.is_cpu)
    return _KEPT * size * held
