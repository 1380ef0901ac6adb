"""Calls of sections by place: durations, failures, calls within the bound, and resource use.

Every ended call counts, whether sampled as a span or not. The share of calls within a declared
bound is exact, because each call is compared with the bound. A measured call reports its resource
use in the payload.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from otel_mlperf import names
from otel_mlperf.journal.layout import Flag

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from otel_mlperf.agent.derivation.new_rows import Payloads
    from otel_mlperf.agent.model.journal_state import JournalState
    from otel_mlperf.journal.ring_scan import Rows

_KEYS: Final = [measure.key for measure in names.MEASURES]
_LONGEST_S: Final = 1e9


class SectionPlace(NamedTuple):
    """Place of a section: calls with the same place are summed."""

    name: int
    """Entry number of the section's name in the journal."""
    path: str
    """Outside steps: section names from below the run to the section's own, joined by "/"."""
    concurrent: bool
    in_step: bool


Use = dict[str, int]
"""Resource use of one call: values by key of the measure."""
Uses = dict[SectionPlace, list[Use]]
"""Resource use of measured calls, by place."""


class SectionCalls(NamedTuple):
    """One or more calls of the sections at one place."""

    place: SectionPlace
    durations_ns: NDArray[np.int64]
    failed: NDArray[np.bool_]
    ends: NDArray[np.int64]
    """End times, monotonic ns."""
    self_ns: int
    """Sum of the self times of all calls."""
    bound_s: float | None
    """Maximum duration of a call that the user's program declares; None if it declares none."""
    within: NDArray[np.bool_]
    """Whether each call succeeded and lasted no longer than the bound."""


def calls_at(
    place: SectionPlace,
    durations_ns: NDArray[np.int64],
    failed: NDArray[np.bool_],
    ends: NDArray[np.int64],
    self_ns: int,
    state: JournalState,
) -> SectionCalls:
    """Return the calls of one place, compared with the bound that the section declares."""
    bound_s = _bound_s(state.section(place.name)[4])
    if bound_s is None:
        within = np.zeros(len(failed), np.bool_)
    else:
        within = (durations_ns <= round(bound_s * 1e9)) & ~failed
    return SectionCalls(place, durations_ns, failed, ends, self_ns, bound_s, within)


def _bound_s(constant: dict[str, Any] | None) -> float | None:
    bound = (constant or {}).get(names.SECTION_BOUND)
    return float(bound) if isinstance(bound, int | float) and 0 < bound < _LONGEST_S else None


def uses_by_row(rows: Rows, payloads: Payloads) -> Iterator[tuple[int, Use]]:
    """Yield index and resource use of each row that was measured."""
    for i in np.flatnonzero(rows["flags"] & Flag.MEASURED).tolist():
        figures = payloads.get(int(rows["span"][i]), {}).get("u") or []
        if len(figures) == len(_KEYS):
            measured = zip(_KEYS, figures, strict=True)
            yield i, {key: figure for key, figure in measured if figure is not None}
