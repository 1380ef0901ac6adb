"""How many spans may an imported trace become?"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from otel_mlperf.errors import UsageError
from otel_mlperf.kineto.spans.budget import Budget

if TYPE_CHECKING:
    from otel_mlperf.journal.window import Window

_BUDGET = re.compile(r"(\d+)\s*([kmg]i?b|b)?", re.IGNORECASE)
_UNITS: Final = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_BINARY: Final = {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


def parse_budget(text: str) -> Budget | None:
    """The budget of ``--budget``: a number of spans, a size, ``none``; None if it is not given.

    Raises:
        UsageError: it is none of them.
    """
    if not text:
        return None
    if text.lower() == "none":
        return Budget(spans=None)
    match = _BUDGET.fullmatch(text.strip())
    if match is None or not int(match[1]):
        raise UsageError(
            f"--budget {text}: a number of spans, a size like 2MiB, or none is expected"
        )
    if match[2]:
        return Budget(spans=None, bytes=int(match[1]) * (_UNITS | _BINARY)[match[2].lower()])
    return Budget(spans=int(match[1]))


def budget_of(window: Window | None) -> Budget:
    """What the agent would send of it, so that an import of a window sends the same."""
    from otel_mlperf.agent.model.agent_options import read_options
    from otel_mlperf.agent.model.sampling_policy import allowance

    policy = read_options(os.environ).policy
    if window is None:
        return Budget(policy.spans_of_rank(1))
    spans, by_trace = allowance(policy, window)
    return Budget(spans, by_trace=by_trace)
