"""Progress of a running training: steps done, steps expected, and the remaining time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from otel_mlperf import names
from otel_mlperf.analysis.steps.step_shares import last_step

if TYPE_CHECKING:
    from otel_mlperf.store.table_reader import Store

_RECENT_STEPS: Final = 100
"""Number of recent steps per rank from which the pace is computed, because it may change."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of the slowest rank."""

    step: int
    """Number of the step that ended last, starting at 0."""
    expected: int
    """Number of steps that the program declared."""
    share: float
    left_ns: int | None
    """Remaining steps x recent time per step, including validations and other gaps between
    steps."""


def read_progress(store: Store) -> Progress | None:
    """Return the progress of the training.

    Return None if the user's program did not declare its number of steps, or no step has finished.
    """
    ((expected,),) = store.rows(
        "SELECT arg_max(value, time_ns) FROM readings WHERE name = $name",
        name=names.STEPS_EXPECTED.name,
    )
    step = last_step(store, names.TRAIN)
    if not expected or step is None:
        return None
    ((pace,),) = store.rows(
        "SELECT max(pace) FROM (SELECT (max(end_ns) - min(start_ns)) / count(*) AS pace FROM "
        "(SELECT * FROM steps WHERE phase = $train QUALIFY row_number() OVER "
        "(PARTITION BY rank ORDER BY restart DESC, n DESC) <= $lately) GROUP BY rank, restart)",
        train=names.TRAIN,
        lately=_RECENT_STEPS,
    )
    remaining = max(0, int(expected) - step - 1)
    return Progress(
        step=step,
        expected=int(expected),
        share=min(1.0, (step + 1) / expected),
        left_ns=None if pace is None else round(remaining * pace),
    )
