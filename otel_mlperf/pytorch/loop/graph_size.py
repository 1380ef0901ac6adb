"""Of how many operations is the graph of a backward pass, and how many only take an element out?"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

MOST: Final = 20_000
"""Nobody asks for more, and each takes 0.8 µs to count."""


_SELECT: Final = "SelectBackward0"


class GraphSize(NamedTuple):
    """What is in a graph."""

    nodes: int
    selects: int
    """Of them, those that take one element out along a dimension: ``x[:, t]``."""


def count_operations(tensors: Any) -> GraphSize:
    """The nodes of autograd's graph behind a tensor or several, up to ``MOST``.

    A part that was compiled is one of them.
    """
    given = tensors if isinstance(tensors, (tuple, list)) else [tensors]
    waiting = [getattr(tensor, "grad_fn", None) for tensor in given]
    seen: set[Any] = set()
    while waiting and len(seen) < MOST:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [above for above, _ in node.next_functions]
    return GraphSize(len(seen), sum(node.name() == _SELECT for node in seen))
