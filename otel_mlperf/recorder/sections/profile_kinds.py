"""Which kinds of profile are there?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf.recorder.sections.call_profile import AllocationProfile, FunctionProfile
from otel_mlperf.recorder.sections.line_profile import LineProfile

if TYPE_CHECKING:
    from otel_mlperf.recorder.sections.call_profile import CallProfile

PROFILES: Final[dict[str, type[CallProfile]]] = {
    one.kind: one for one in (FunctionProfile, LineProfile, AllocationProfile)
}
"""By what ``span(profile=)`` calls them."""
