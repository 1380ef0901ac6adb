"""How long did sections take, call by call: for the histograms of the tables and of the server?

Every call that ended counts, whatever is kept as spans. What the program says of the most that a
call is to take is held against each of them, so that the share within it is exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from otel_mlperf import names

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from otel_mlperf.agent.derivation.mark_task import MarkTask


class CallPlace(NamedTuple):
    """Where a section was: calls of one name and place add up."""

    name: int
    """Its entry in the journal."""
    path: str
    """Outside steps, names from below the run."""
    beside: bool
    in_step: bool


def add_calls(
    task: MarkTask,
    place: CallPlace,
    durations_ns: NDArray[np.int64],
    failed: NDArray[np.bool_],
) -> None:
    """Adds the calls of one place to the tables, and those that have a bound to its counters.

    At least one.
    """
    meta = task.journal.meta
    _, name, category, phase, constant = task.entry(place.name)
    bound_s = _bound_s(constant)
    row = {
        "rank": meta.rank,
        "restart": meta.restart,
        "phase": phase if place.in_step else "",
        "name": name,
        "category": category,
        "path": place.path,
        "beside": place.beside,
        "in_step": place.in_step,
        "bound_s": bound_s,
    }
    within = 0
    if bound_s is not None:
        within = int(((durations_ns <= round(bound_s * 1e9)) & ~failed).sum())
        labels = task.labels(place.name, phase=None if place.in_step else "")
        task.meter.add(names.SECTION_BOUNDED, labels, len(durations_ns))
        task.meter.add(names.SECTION_WITHIN, labels, within)
    task.tables.durations.add(row, durations_ns, int(failed.sum()), within)


def _bound_s(constant: dict[str, Any] | None) -> float | None:
    """What the program says that a call is to take at most; seconds."""
    bound = (constant or {}).get(names.SECTION_BOUND)
    return float(bound) if isinstance(bound, int | float) and 0 < bound < _LONGEST_S else None


_LONGEST_S = 1e9
