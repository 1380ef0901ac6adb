"""Histograms of section durations, call by call, for the tables and the server.

Every call that ended counts, whether sampled as a span or not. Each call is compared with the bound
that the program declares, so that the share within the bound is exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from otel_mlperf import names
from otel_mlperf.tables.run_tables import DurationPlaceRow

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.agent.derivation.mark_task import MarkTask


class CallPlace(NamedTuple):
    """Place of a section: calls of one name and place add up."""

    name: int
    """Its entry in the journal."""
    path: str
    """Names from below the run, outside steps."""
    beside: bool
    in_step: bool


def add_calls(
    task: MarkTask,
    place: CallPlace,
    durations_ns: NDArray[np.int64],
    failed: NDArray[np.bool_],
    ends: NDArray[np.int64],
) -> None:
    """Add the calls of one place to the tables, and bounded ones to their counters.

    There must be at least one call; ``ends`` are times of the journal.
    """
    meta = task.journal.meta
    _, name, category, phase, constant = task.entry(place.name)
    bound_s = _bound_s(constant)
    row = DurationPlaceRow(
        rank=meta.rank,
        restart=meta.restart,
        phase=phase if place.in_step else "",
        name=name,
        category=category,
        path=place.path,
        beside=place.beside,
        in_step=place.in_step,
        bound_s=bound_s,
    )
    is_within = np.zeros(len(failed), np.bool_)
    if bound_s is not None:
        is_within = (durations_ns <= round(bound_s * 1e9)) & ~failed
        labels = task.labels(place.name, phase=None if place.in_step else "")
        task.meter.add(names.SECTION_BOUNDED, labels, len(durations_ns))
        task.meter.add(names.SECTION_WITHIN, labels, int(is_within.sum()))
    minutes = _minutes(ends + meta.shift_ns) if category == names.REQUEST else {None: ...}
    for minute_ns, mine in minutes.items():
        task.tables.durations.add(
            replace(row, minute_ns=minute_ns),
            durations_ns[mine],
            int(failed[mine].sum()),
            int(is_within[mine].sum()),
        )


def _minutes(ends_ns: NDArray[np.int64]) -> dict[int | None, Any]:
    """Return the calls that ended in each minute, by its start; Unix times."""
    begins = ends_ns - ends_ns % _MINUTE_NS
    return {minute: begins == minute for minute in np.unique(begins).tolist()}


def _bound_s(constant: dict[str, Any] | None) -> float | None:
    """Return the maximum duration that the program declares for a call, in seconds."""
    bound = (constant or {}).get(names.SECTION_BOUND)
    return float(bound) if isinstance(bound, int | float) and 0 < bound < _LONGEST_S else None


_LONGEST_S: Final = 1e9
_MINUTE_NS: Final = 60 * 10**9
