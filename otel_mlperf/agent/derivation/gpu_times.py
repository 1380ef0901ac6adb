"""GPU times of sections and steps, derived from stamps: duration, idle time, pace.

A section's stamps are reported some time after its row. The derivation of rows does not wait for
the stamps. Only the spans of sampled steps wait, for a limited number of marks, to include GPU
times.

**Idle** is the time between the step's stamps in which no section that launches device work is
active. The device was idle then, provided that no other section launches work. Idle time within
such sections, because work arrives too slowly, is not detected.

**Pace.** A stamp that completes on the device as soon as the host has recorded it (within
``_SOON_NS``, or a hundredth of the step) found the device without work: the host set the pace since
the previous stamp. A stamp that completes later was queued behind other work: the device set the
pace. The comparison requires the offset between both clocks. Bounds of the offset are known,
because each stamp completes after it was recorded, and before the host observed its completion. If
the bounds are too wide to decide, the pace is unknown.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_mlperf import names
from otel_mlperf.agent.derivation.section_calls import SectionPlace, Uses
from otel_mlperf.intervals import CoveredTime
from otel_mlperf.tables.run_tables import GpuStepRow

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from otel_mlperf.agent.derivation.outside_sections import OutsideSection
    from otel_mlperf.agent.model.journal_state import JournalState, Root
    from otel_mlperf.journal.contents import DeviceTimes, SectionTimes

WORK: Final = frozenset(
    (names.TRANSFER, names.FORWARD, names.BACKWARD, names.OPTIMIZER, names.COMMUNICATION)
)
"""Categories of sections that launch device work."""
_SOON_NS: Final = 200_000
_SOON_PART: Final = 100
_DRIFT: Final = 10_000
"""Inverse of the maximum relative drift between the clocks."""
_ENOUGH: Final = 0.5
"""Minimum share of a step's device time that one side must have paced to be reported."""


class Pace(NamedTuple):
    """Device time of a step, split by the side that set the pace, in ns."""

    host_ns: int
    device_ns: int
    unknown_ns: int

    @property
    def by(self) -> str:
        """Return ``host`` or ``device`` if this side paced more than half of the time, else ""."""
        total = sum(self)
        if self.host_ns > _ENOUGH * total:
            return "host"
        return "device" if self.device_ns > _ENOUGH * total else ""


class StepOnDevice(NamedTuple):
    """Device times of one step, in ns."""

    gpu_ns: int
    idle_ns: int | None
    """Idle time of the device; None if no section of the step launched device work."""
    pace: Pace


def narrowed(known: list[int] | None, times: DeviceTimes) -> list[int]:
    """Return bounds of host clock minus device clock, and the device time of both, in ns.

    Earlier bounds are widened by the possible drift and intersected with the bounds from the new
    stamps.

    Args:
        known: the previous return value for the device; None for the first times of a device.
        times: the newly reported times.
    """
    now = times.device_ns
    last = now + max(section.end for section in times.sections)
    slack = abs(last - now) // _DRIFT
    low, high = times.low - slack, times.high + slack
    if known is not None:
        aged = abs(last - known[2]) // _DRIFT
        both = max(low, known[0] - aged), min(high, known[1] + aged)
        if both[0] <= both[1]:  # otherwise a clock was adjusted: use the new bounds alone
            low, high = both
    return [low, high, last]


def step_on_device(
    times: DeviceTimes, working: Collection[int], low: int, high: int
) -> StepOnDevice:
    """Return GPU time, idle time and pace of a step, derived from its stamps.

    Args:
        times: stamps of the step. The first section is the step itself.
        working: entry numbers of sections that launch device work.
        low: lower bound of host clock minus device clock, in ns.
        high: upper bound of the same difference.
    """
    step, *sections = times.sections
    inside = [section for section in sections if section.is_same_stream]
    works = [section for section in inside if section.entry in working]
    gpu_ns = max(0, step.end - step.begin)
    covered = CoveredTime()
    for section in sorted(works, key=lambda section: section.begin):
        covered.add(max(section.begin, step.begin), min(section.end, step.end))
    idle_ns = max(0, gpu_ns - covered.covered_ns) if works else None
    shift = times.device_ns - times.host_ns
    return StepOnDevice(gpu_ns, idle_ns, _pace(step, inside, low + shift, high + shift))


def _pace(step: SectionTimes, inside: Iterable[SectionTimes], low: int, high: int) -> Pace:
    sections = (step, *inside)
    stamps = [(section.begin, section.host_begin) for section in sections]
    stamps += [(section.end, section.host_end) for section in sections]
    # Ignore stamps before the step's start stamp or after its end stamp.
    stamps = sorted(stamp for stamp in stamps if step.begin <= stamp[0] <= step.end)
    soon = max(_SOON_NS, (step.end - step.begin) // _SOON_PART)
    host = device = unknown = 0
    for (before, _), (passed, recorded) in pairwise(stamps):
        # Minimum and maximum time for which the stamp was queued behind other work.
        min_queued, max_queued = passed + low - recorded, passed + high - recorded
        if min_queued > soon:
            device += passed - before
        elif max_queued <= soon:
            host += passed - before
        else:
            unknown += passed - before
    return Pace(host, device, unknown)


_REMEMBERED: Final = 4096

Figures = dict[int, dict[str, Any]]
"""GPU-time attributes by span id."""


class DerivedGpuTimes(NamedTuple):
    """GPU times that were reported since the last mark."""

    steps: list[GpuStepRow]
    uses: Uses
    """GPU times of all sections by place, whether sampled as spans or not."""
    figures: Figures
    reported: set[int]
    """Span ids of the steps whose times were reported."""


def note_places(state: JournalState, sections: Iterable[OutsideSection]) -> None:
    """Store path and concurrency of those ``sections`` for which GPU times are reported later."""
    places = state.device_places
    for section in sections:
        if section.on_device:
            places[section.span] = ("/".join(section.path), section.concurrent)
    while len(places) > _REMEMBERED:
        del places[next(iter(places))]


def derive_gpu_times(reported: Iterable[DeviceTimes], state: JournalState) -> DerivedGpuTimes:
    """Derive GPU times of sections and steps from ``reported`` stamps."""
    derived = DerivedGpuTimes([], {}, {}, set())
    for times in reported:
        if not times.sections:
            continue
        state.device_clocks[times.device] = narrowed(state.device_clocks.get(times.device), times)
        root = _step_of(state, times.root)
        _add_sections(derived, times, root, state)
        if times.is_step:
            derived.reported.add(times.root)
            # Skip mixed times: they include phases that are excluded from the step.
            if root is not None and not times.is_mixed:
                _add_step(derived, times, root, state)
    return derived


def _add_sections(
    derived: DerivedGpuTimes, times: DeviceTimes, step: Root | None, state: JournalState
) -> None:
    for section in times.sections:
        if section.span == times.root and times.is_mixed:
            continue
        ns = max(0, section.end - section.begin)
        derived.figures[section.span] = {names.GPU_NS.attribute: ns}
        path, concurrent = "", False
        if step is None:
            name = state.section(section.entry)[1]
            path, concurrent = state.device_places.pop(section.span, (name, False))
        place = SectionPlace(section.entry, path, concurrent, in_step=step is not None)
        derived.uses.setdefault(place, []).append({names.GPU_NS.key: ns})


def _step_of(state: JournalState, root: int) -> Root | None:
    ended = state.ended.get(root)
    known = ended.root if ended is not None else state.roots.get(root)
    return known if known is not None and known.kind == "step" else None


def _add_step(
    derived: DerivedGpuTimes, times: DeviceTimes, root: Root, state: JournalState
) -> None:
    low, high, _ = state.device_clocks[times.device]
    entries = {section.entry for section in times.sections}
    working = [entry for entry in entries if state.section(entry)[2] in WORK]
    step = step_on_device(times, working, low, high)
    derived.steps.append(GpuStepRow(
        rank=state.meta.rank,
        restart=state.meta.restart,
        phase=root.phase,
        n=root.n,
        number=root.number,
        device=times.device,
        gpu_ns=step.gpu_ns,
        idle_ns=step.idle_ns,
        host_paced_ns=step.pace.host_ns,
        device_paced_ns=step.pace.device_ns,
    ))  # fmt: skip
    own = derived.figures[times.root]
    if step.idle_ns is not None:
        own[names.GPU_IDLE] = step.idle_ns
    if step.pace.by:
        own[names.PACED_BY] = step.pace.by
