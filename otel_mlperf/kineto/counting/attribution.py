"""Attribution of each event of a trace to a section, step and phase."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from otel_mlperf.intervals import sums
from otel_mlperf.kineto.linking.collectives import is_collective
from otel_mlperf.kineto.linking.forest import Forest
from otel_mlperf.kineto.linking.linked_events import Place, Role, find_roles
from otel_mlperf.kineto.linking.threads import Innermost, find_waiting
from otel_mlperf.kineto.reading.value_columns import narrowed
from otel_mlperf.kineto.trace_events import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.journal.profiler_windows import Window
    from otel_mlperf.kineto.linking.linked_events import Links, TraceStep
    from otel_mlperf.kineto.linking.sections import Sections
    from otel_mlperf.kineto.trace_events import Trace

_STEP: Final = ".step"


class Attribution(NamedTuple):
    """Section, step and phase of each event of a trace.

    The arrays ``section``, ``step`` and ``phase`` have one item for each event: an index into the
    list of names, or NONE.
    """

    section: NDArray[np.int32]
    sections: list[str]
    step: NDArray[np.signedinteger[Any]]
    steps: list[str]
    phase: NDArray[np.signedinteger[Any]]
    phases: list[str]


def find_attribution(
    trace: Trace, links: Links, sections: Sections, window: Window | None = None
) -> Attribution:
    """Return the section, step and phase of each event.

    The section of an event is the innermost recorded section around it. If an event is in no
    recorded section other than its step, its section is the innermost annotation around it;
    annotations of steps and of single collectives do not count. Only a recorded step has a phase,
    because annotations of steps do not contain one.
    """
    section, names = _sections(trace, links, sections)
    described = [_step_and_phase(step, sections, window) for step in links.steps]
    labels = [label for label, _ in described]
    phases = sorted({phase for _, phase in described if phase})
    place = {phase: at for at, phase in enumerate(phases)}
    of_step = narrowed(np.array([place.get(phase, NONE) for _, phase in described] + [NONE]))
    return Attribution(section, names, links.step, labels, of_step[links.step], phases)


def _sections(
    trace: Trace, links: Links, sections: Sections
) -> tuple[NDArray[np.int32], list[str]]:
    recorded = _self_or_above(links, links.section != NONE)
    of_section = np.where(recorded == NONE, NONE, links.section[recorded])
    annotation = _annotations(trace, links)
    name = np.where(annotation == NONE, NONE, trace.events.name[annotation])
    is_step = np.append(sections.is_step, True)[of_section]
    words = sorted(
        {*sections.name, *(trace.names[number] for number in np.unique(name[name != NONE]))}
    )
    place = {label: at for at, label in enumerate(words)}
    of_recorded = np.array([place[label] for label in sections.name] + [NONE], np.int32)[of_section]
    of_name = np.array([place.get(label, NONE) for label in trace.names] + [NONE], np.int32)[name]
    inner = is_step & (of_name != NONE)
    return np.where(inner, of_name, of_recorded), words


def _annotations(trace: Trace, links: Links) -> NDArray[np.int32]:
    """Return the row of the innermost annotation around each event; NONE if there is none.

    Autograd runs the backward pass on threads of its own. An event on such a thread without an
    annotation is attributed to the annotation that was open on the thread that waits for autograd.
    """
    is_section = _is_section(trace, links)
    forest, events = Forest(links.parent), trace.events
    above = forest.nearest(is_section)
    root = forest.roots()
    elsewhere = np.full(len(events), NONE, np.int32)
    waiting = find_waiting(trace, links.around, links.forward)
    for track in np.unique(events.track[is_section]).tolist():
        rows = np.flatnonzero(is_section & (events.track == track))
        cover = Innermost(events.start_ns[rows], events.start_ns[rows] + events.duration_ns[rows])
        mine = np.flatnonzero((waiting == track) & ~links.is_device)
        elsewhere[mine] = np.append(rows, NONE)[cover.at(events.start_ns[mine])]
    innermost: NDArray[np.int32] = np.where(above == NONE, elsewhere[root], above)
    return innermost


def _self_or_above(links: Links, wanted: NDArray[np.bool_]) -> NDArray[np.int32]:
    rows = np.arange(len(wanted), dtype=np.int32)
    nearest: NDArray[np.int32] = np.where(wanted, rows, Forest(links.parent).nearest(wanted))
    return nearest


def _is_section(trace: Trace, links: Links) -> NDArray[np.bool_]:
    single = np.array([is_collective(name) for name in trace.names] or [False])
    is_section: NDArray[np.bool_] = (find_roles(trace) == Role.ANNOTATION) & ~single[
        trace.events.name
    ]
    is_section &= links.place != Place.TWIN
    is_section[[step.row for step in links.steps if step.row != NONE]] = False
    return is_section


def _step_and_phase(step: TraceStep, sections: Sections, window: Window | None) -> tuple[str, str]:
    if step.section == NONE:
        return step.name, ""
    span = f"{int(sections.span_id[step.section]):016x}"
    for known in window.steps if window is not None else ():
        if known.span == span:
            return f"{known.phase} step {known.number}", known.phase
    phase = step.name.removesuffix(_STEP)
    return step.name, phase if phase != step.name else ""


def main_sections(
    duration_ns: NDArray[np.int64],
    group: NDArray[np.integer[Any]],
    section: NDArray[np.int32],
) -> dict[int, tuple[int, int]]:
    """Return for each group the section with most of the group's time, and that time in ns.

    Every argument has one item for each event; events whose ``section`` is NONE are ignored.
    """
    rows, width = np.flatnonzero(section != NONE), int(section.max(initial=0)) + 1
    pairs, of_pair = np.unique(
        group[rows].astype(np.int64) * width + section[rows], return_inverse=True
    )
    spent = sums(duration_ns[rows], of_pair, len(pairs))
    # ``dict`` keeps the last item of a key: the longest section, among equals the first by name.
    order = np.lexsort((-(pairs % width), spent))
    keys, named, times = pairs[order] // width, pairs[order] % width, spent[order]
    best = zip(named.tolist(), times.tolist(), strict=True)
    return dict(zip(keys.tolist(), best, strict=True))
