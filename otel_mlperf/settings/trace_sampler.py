"""Samplers of OpenTelemetry's specification, which decide about traces by their id alone.

A sampler narrows what the policy of traced steps selects. All ranks of a step share its trace id,
so all of them decide alike. So does the SDK of a program that takes part in the trace.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

_PARENT_BASED: Final = "parentbased_"
_ROOT_SAMPLERS: Final = ("always_on", "always_off", "traceidratio")
SAMPLERS: Final = (*_ROOT_SAMPLERS, *(_PARENT_BASED + name for name in _ROOT_SAMPLERS))
_LIMIT: Final = 1 << 64
_SAMPLED: Final = 1


class Sampler(NamedTuple):
    """Sampler that decides about each trace."""

    ratio: float
    """Share of traces that are sent, from 0 to 1."""
    is_parent_based: bool

    def samples(self, trace_id: int, caller_flags: int | None = None) -> bool:
        """Return whether spans of a trace are sent.

        Args:
            trace_id: 128 bits.
            caller_flags: those of W3C Trace Context, if another process started the trace.
        """
        if self.is_parent_based and caller_flags is not None:
            return bool(caller_flags & _SAMPLED)
        # As the SDK computes it: both must decide alike about each trace.
        return trace_id % _LIMIT < round(self.ratio * _LIMIT)


def make_sampler(name: str, ratio: float) -> Sampler | None:
    """Return the sampler of that name in ``SAMPLERS``; None for an empty name: all is sent."""
    if not name:
        return None
    root = name.removeprefix(_PARENT_BASED)
    ratio = {"always_on": 1.0, "always_off": 0.0}.get(root, ratio)
    return Sampler(ratio, name.startswith(_PARENT_BASED))


def parse_sampler(given: Any) -> str:
    """Return the name of a sampler in lower case; ValueError for an unknown one."""
    name = str(given).strip().lower()
    if name not in ("", *SAMPLERS):
        raise ValueError
    return name


def parse_ratio(given: Any) -> float:
    """Return a ratio from 0 to 1; ValueError for another number."""
    ratio = float(given)
    if not 0 <= ratio <= 1:
        raise ValueError
    return ratio
