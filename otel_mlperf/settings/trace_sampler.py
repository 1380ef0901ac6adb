"""Standard OpenTelemetry samplers, which decide by a trace's id alone whether to send the trace.

The settings ``trace_first``, ``trace_every`` and the like select traces, some of which a sampler
discards. All ranks of a step share the step's trace id, so they make the same decision. An
OpenTelemetry SDK that takes part in the trace makes the same decision, too.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

_PARENT_BASED: Final = "parentbased_"
_ROOT_SAMPLERS: Final = ("always_on", "always_off", "traceidratio")
SAMPLERS: Final = (*_ROOT_SAMPLERS, *(_PARENT_BASED + name for name in _ROOT_SAMPLERS))
_LIMIT: Final = 1 << 64
_SAMPLED: Final = 1


class Sampler(NamedTuple):
    """Sampler that sends a fixed share of traces."""

    ratio: float
    """Share of traces that are sent, from 0 to 1."""
    is_parent_based: bool
    """Whether the decision of the process that started a trace takes precedence."""

    def samples(self, trace_id: int, caller_flags: int | None = None) -> bool:
        """Return whether the spans of a trace are sent.

        Args:
            trace_id: integer of 128 bits.
            caller_flags: trace flags of W3C Trace Context; None: this process started the trace.
        """
        if self.is_parent_based and caller_flags is not None:
            return bool(caller_flags & _SAMPLED)
        # The SDK's formula: the SDK and this sampler must make the same decision for each trace.
        return trace_id % _LIMIT < round(self.ratio * _LIMIT)


def make_sampler(name: str, ratio: float) -> Sampler | None:
    """Return the sampler ``name``, with ``ratio`` if it uses one; None if the name is empty."""
    if not name:
        return None
    root = name.removeprefix(_PARENT_BASED)
    ratio = {"always_on": 1.0, "always_off": 0.0}.get(root, ratio)
    return Sampler(ratio, name.startswith(_PARENT_BASED))


def parse_sampler(given: Any) -> str:
    """Return a sampler's name in lower case; empty if no sampler is given.

    Raises:
        ValueError: there is no such sampler.
    """
    name = str(given).strip().lower()
    if name not in ("", *SAMPLERS):
        raise ValueError
    return name


def parse_ratio(given: Any) -> float:
    """Return a ratio from 0 to 1.

    Raises:
        ValueError: the value is not such a number.
    """
    ratio = float(given)
    if not 0 <= ratio <= 1:
        raise ValueError
    return ratio
