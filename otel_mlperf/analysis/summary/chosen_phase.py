"""Phase of a summary: the requested phase, requests, or the default."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_mlperf import names
from otel_mlperf.errors import NoSuchPhase

if TYPE_CHECKING:
    from otel_mlperf.store.run_folders import RunFolder
    from otel_mlperf.store.table_reader import Store


def chosen_phase(run: RunFolder, store: Store, asked: str) -> str | None:
    """Return the phase that the user requested as ``asked``; None if ``asked`` means requests.

    Raises:
        NoSuchPhase: the run has no steps of the requested phase, or no requests if these were
            requested.
    """
    phase = names.PHASE_OF.get(asked, asked)
    ((has_requests,),) = store.rows(
        "SELECT count(*) > 0 FROM durations WHERE category = $request", request=names.REQUEST
    )
    if phase == names.REQUEST and has_requests:
        return None
    phases = [row[0] for row in store.rows("SELECT DISTINCT phase FROM steps ORDER BY phase")]
    if phase in phases:
        return phase
    known = ", ".join([*phases, *[names.REQUEST] * has_requests]) or "none yet"
    raise NoSuchPhase(
        f"looking for phase {asked!r} in run {run.short_id}: the run has phases {known}"
    )
