"""Registry of the kinds of profile that ``span(profile=)`` accepts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf.recorder.sections.call_profile import FunctionProfile
from otel_mlperf.recorder.sections.line_profile import LineProfile

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.recorder.sections.call_profile import CallProfile


def _allocations() -> CallProfile:
    # Imported on demand: few programs need it, and each full garbage collection would traverse the
    # modules that it loads.
    from otel_mlperf.recorder.sections.allocation_profile import new_allocation_profile

    return new_allocation_profile()


PROFILES: Final[dict[str, Callable[[], CallProfile]]] = {
    "calls": FunctionProfile,
    "lines": LineProfile,
    "memory": _allocations,
}
"""Constructors of profiles, by the value of ``span(profile=)``."""
