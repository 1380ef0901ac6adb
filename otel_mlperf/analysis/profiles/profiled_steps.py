"""Steps that profiler windows recorded, and the events that belong to each step.

If the run recorded a step, the stored events of the step have its phase and number. If a step is
known only from the profiler's annotation ``ProfilerStep#5``, the step's events are that annotation
and the events nested in it.
"""

from __future__ import annotations

import json
import re
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_mlperf import names
from otel_mlperf.errors import NoSuchStep
from otel_mlperf.store.window_facts import StepEvents

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from otel_mlperf.store.table_reader import Store
    from otel_mlperf.tables.window_tables import WindowRow

_LABEL: Final = re.compile(r"(?:(?P<phase>.+) step |ProfilerStep#)(?P<number>-?\d+)")
_COLUMNS: Final = (
    "rank, span_id, parent_id, name, category, track, thread, thread_id, start_ns, end_ns, "
    "attributes"
)
_SAME: Final = "kind = 'event' AND phase = $phase AND number = $number AND restart = $restart"
_NEWEST: Final = f"{_SAME} AND n = (SELECT max(n) FROM spans WHERE {_SAME})"

_Rows = list[dict[str, Any]]


class ProfiledStep(NamedTuple):
    """A step that a profiler window of one rank contains, as named in the window."""

    name: str
    phase: str
    """Empty: the step is known only from an annotation."""
    number: int
    rank: int
    restart: int
    digest: str
    """Digest of the window's trace."""


def find_profiled(windows: Iterable[WindowRow]) -> list[ProfiledStep]:
    """Return the steps that profiler windows contain, sorted by rank, restart and time."""
    profiled = []
    for row in sorted(windows, key=lambda row: (row.rank, row.restart, row.start_ns)):
        for name in json.loads(row.steps):
            if match := _LABEL.fullmatch(name):
                key = (row.rank, row.restart, row.digest)
                profiled.append(
                    ProfiledStep(name, match["phase"] or "", int(match["number"]), *key)
                )
    return profiled


def choose_step(
    known: Sequence[ProfiledStep], number: int, phase: str | None, looked_at: str
) -> list[ProfiledStep]:
    """Return, for each rank, the step with the given ``number``, of the newest restart that has it.

    If ``phase`` is None, any phase matches, and training takes precedence over other phases.
    ``looked_at`` names the run in the error message.

    Raises:
        NoSuchStep: the step was not profiled; the message lists profiled steps.
    """
    same = [step for step in known if step.number == number and phase in (None, step.phase)]
    if not same:
        raise NoSuchStep(_no_such_step(known, number, phase, looked_at))
    phases = {step.phase for step in same}
    # Empty sorts first: recorded steps take precedence over steps known only from annotations.
    chosen = names.TRAIN if names.TRAIN in phases else max(phases)
    newest = max(step.restart for step in same if step.phase == chosen)
    return [step for step in same if (step.phase, step.restart) == (chosen, newest)]


def _no_such_step(
    known: Sequence[ProfiledStep], number: int, phase: str | None, looked_at: str
) -> str:
    which = f"{phase} step {number}" if phase else f"step {number}"
    tried = f"looking for {which} in the profiler windows of {looked_at}"
    if not known:
        return f"{tried}: they contain no steps; declare steps with otel_mlperf.steps()"
    of_phase: dict[str, set[int]] = {}
    for step in known:
        of_phase.setdefault(step.phase, set()).add(step.number)
    there = ", ".join(f"{name or 'step'} {_listed(of)}" for name, of in of_phase.items())
    return f"{tried}: this step was not profiled; profiled steps: {there}"


def _listed(numbers: Iterable[int]) -> str:
    """Format numbers as ranges, like ``11-13, 55-57``."""
    runs = [
        [number for _, number in part]
        for _, part in groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0])
    ]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def read_step_events(store: Store, chosen: Sequence[ProfiledStep]) -> StepEvents:
    """Return the events of a step on all ranks of ``chosen``, with the sections around them.

    ``chosen`` is a result of ``choose_step``.

    Raises:
        NoSuchStep: the events of the step were evicted to make room for newer ones.
        StoreError: a file of the run cannot be read.
    """
    first = chosen[0]
    events = _recorded(store, chosen) if first.phase else _annotated(store, chosen)
    if not events.events:
        raise NoSuchStep(
            f"looking for the events of {first.name}: they were deleted for newer events when the "
            "run folder reached its size limit; totals of the step remain: --by step"
        )
    return events


def _recorded(store: Store, chosen: Sequence[ProfiledStep]) -> StepEvents:
    step = chosen[0]
    values = {"phase": step.phase, "number": step.number, "restart": step.restart}
    events = store.records(f"SELECT {_COLUMNS} FROM spans WHERE {_NEWEST}", **values)
    above = store.records(
        "SELECT rank, span_id, name, end_ns - start_ns AS length_ns, root_id = span_id AS is_step "
        "FROM spans WHERE kind = 'section' AND restart = $restart AND span_id IN "
        f"(SELECT unnest([parent_id, root_id]) FROM spans WHERE {_NEWEST})",
        **values,
    )
    # The duration in table steps excludes a validation or checkpoint inside the step. A step that
    # was open when its process died has only a span.
    measured = store.rows(
        "SELECT rank, arg_max(duration_ns, n) FROM steps WHERE phase = $phase "
        "AND number = $number AND restart = $restart GROUP BY rank",
        **values,
    )
    return _step_events(
        chosen,
        events,
        {row["span_id"]: (row["name"], row["is_step"]) for row in above},
        {row["rank"]: row["length_ns"] for row in above if row["is_step"]} | dict(measured),
    )


def _step_events(
    chosen: Sequence[ProfiledStep],
    events: _Rows,
    sections: dict[str, tuple[str, bool]],
    lengths_ns: dict[int, int],
) -> StepEvents:
    first = chosen[0]
    return StepEvents(
        name=first.name,
        phase=first.phase,
        number=first.number,
        windows=[(step.rank, step.digest) for step in chosen],
        events=events,
        sections=sections,
        lengths_ns=lengths_ns,
    )


def _annotated(store: Store, chosen: Sequence[ProfiledStep]) -> StepEvents:
    of_name = "SELECT rank, trace_id FROM spans WHERE kind = 'event' AND name = $name"
    events = store.records(
        f"SELECT {_COLUMNS} FROM spans WHERE kind = 'event' AND (rank, trace_id) IN ({of_name})",
        name=chosen[0].name,
    )
    return below_annotation(events, chosen)


def below_annotation(events: _Rows, chosen: Sequence[ProfiledStep]) -> StepEvents:
    """Return the annotations with the step's name, and all ``events`` nested in them."""
    name = chosen[0].name
    by_id = {row["span_id"]: row for row in events}
    inside: dict[str, bool] = {}
    for row in events:
        # Cache the result for all ancestors: windows have a million events, and hundreds of nested
        # Python frames.
        path = []
        at: Mapping[str, Any] | None = row
        while at is not None and at["span_id"] not in inside and at["name"] != name:
            path.append(at["span_id"])
            at = by_id.get(at["parent_id"])
        is_inside = at is not None and (at["name"] == name or inside[at["span_id"]])
        inside |= dict.fromkeys(path, is_inside)
        inside.setdefault(row["span_id"], is_inside)
    lengths: dict[int, int] = {}
    for row in events:
        # Skip the device's copy of the annotation: it is a descendant of the host's annotation.
        if row["name"] == name and not inside.get(row["parent_id"]):
            length = row["end_ns"] - row["start_ns"]
            lengths[row["rank"]] = max(length, lengths.get(row["rank"], 0))
    below = [row for row in events if inside[row["span_id"]]]
    return _step_events(chosen, below, {}, lengths)
