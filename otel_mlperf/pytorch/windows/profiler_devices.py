"""Which devices can the profiler record here, and what keeps it from recording more?

Asks torch, which the program has imported.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_LOG_LEVEL: Final = "KINETO_LOG_LEVEL"
_SILENT: Final = "99"
_SAFE_CUDA: Final = (12, 6)
NO_EVENTS: Final = (
    "the trace has no event of the GPU: either nothing ran there, or CUPTI was refused (another "
    "profiler holds it: nsys, ncu, DCGM; or the driver wants more rights)"
)


def choose_activities(wanted: Sequence[str]) -> tuple[list[Any], list[str], str]:
    """What to record: torch's activities, their names, and why one that matters is missing.

    Args:
        wanted: names; empty for all that there is.
    """
    profiler = sys.modules["torch.profiler"]
    there = {kind.name.lower(): kind for kind in profiler.supported_activities()}
    names = sorted(name for name in there if not wanted or name in wanted) or ["cpu"]
    missing = [name for name in wanted if name not in there]
    problem = f"torch cannot record {', '.join(missing)} here" if missing else ""
    if not wanted and len(there) == 1:
        problem = "torch finds no GPU here"
    kinds = [there.get(name, profiler.ProfilerActivity.CPU) for name in names]
    return kinds, names, problem


def has_crashing_graphs(cuda: str | None, *, are_graphs_used: bool) -> bool:
    """Whether a profiler that starts again would crash the CUDA graphs of this version of CUDA.

    https://github.com/pytorch/pytorch/issues/75504
    """
    if cuda is None or not are_graphs_used:
        return False
    numbers = [int(part) if part.isdigit() else 0 for part in cuda.split(".")[:2]]
    return tuple(numbers) < _SAFE_CUDA


def detect_crashing_graphs() -> bool:
    """The same of this process."""
    torch = sys.modules["torch"]
    compiler = sys.modules.get("torch._inductor.config")
    is_compiled = compiler is not None and bool(compiler.triton.cudagraphs)
    # Graphs that were captured by hand leave no trace in a module; those of torch.compile do.
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    return has_crashing_graphs(torch.version.cuda, are_graphs_used=is_compiled or trees is not None)


@contextmanager
def quiet() -> Iterator[None]:
    """Around the first use of Kineto, which reads then how much it may say on stderr."""
    if _LOG_LEVEL in os.environ:
        yield
        return
    os.environ[_LOG_LEVEL] = _SILENT
    try:
        yield
    finally:
        os.environ.pop(_LOG_LEVEL, None)
