"""Check whether a profiler or a tracer is on, in any version of Python.

From 3.12 on cProfile and line_profiler are tools of ``sys.monitoring``; before that they stand
where ``sys.setprofile`` and ``sys.settrace`` put them.
"""

from __future__ import annotations

import sys
import tracemalloc
from typing import Any

HAS_MONITORING = sys.version_info >= (3, 12)


def is_profiled() -> bool:
    """Whether functions or lines are followed, by whomever."""
    return sys.getprofile() is not None or sys.gettrace() is not None or _has_tool()


def is_nothing_on() -> bool:
    """Whether allocations are not followed either; what memray follows nobody tells."""
    return not is_profiled() and not tracemalloc.is_tracing()


def _has_tool() -> bool:
    monitoring: Any = getattr(sys, "monitoring", None)
    return monitoring is not None and monitoring.get_tool(monitoring.PROFILER_ID) is not None
