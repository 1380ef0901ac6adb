"""Of a step on a GPU: how long did the device idle, and who waited for whom?

From nothing but its stamps: when each was given to the device, by the host's clock, and when it was
passed, by the device's.

**Idle** is the time between the step's stamps that is in none of the sections that give the device
work. It did idle then, if only those sections do. What they leave idle themselves, because
their work comes too slowly, is not seen.

**Pace.** A stamp that is passed as soon as it is given (within ``_SOON_NS``, or a hundredth of the
step) found a device with nothing to do: what passed since the stamp before was paced by the host.
One that is passed later stood behind other work: that time was paced by the device. To compare the
two clocks takes the difference between them, of which bounds are known: each stamp is passed after
it was given, and before it was found passed. Where the bounds do not tell, neither does this.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_mlperf import names
from otel_mlperf.intervals import CoveredTime

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from otel_mlperf.journal.device_times import DeviceTimes, SectionTimes

WORK: Final = frozenset(
    (names.TRANSFER, names.FORWARD, names.BACKWARD, names.OPTIMIZER, names.COMMUNICATION)
)
"""Categories that give a device work; others may wait as well."""
_SOON_NS: Final = 200_000
_SOON_PART: Final = 100
_DRIFT: Final = 10_000
"""Clocks drift by less than one part in so many."""
_ENOUGH: Final = 0.5
"""Part of a step that is known to be paced by one, for the step to be."""


class Pace(NamedTuple):
    """The time of a step on its device by who set the pace, ns."""

    host_ns: int
    device_ns: int
    unknown_ns: int

    @property
    def by(self) -> str:
        """Who set most of it; empty: it cannot be told."""
        total = sum(self)
        if self.host_ns > _ENOUGH * total:
            return "host"
        return "device" if self.device_ns > _ENOUGH * total else ""


class StepOnDevice(NamedTuple):
    """One step on the device on which its own stamps are, ns."""

    gpu_ns: int
    idle_ns: int | None
    """None: no section gave the device work."""
    pace: Pace


def narrowed(known: list[int] | None, times: DeviceTimes) -> list[int]:
    """Bounds of host clock less device clock, and the device time up to which they hold.

    Args:
        known: the ones so far.
        times: what is told now.
    """
    now = times.device_ns
    last = now + max(section.end for section in times.sections)
    slack = abs(last - now) // _DRIFT
    low, high = times.low - slack, times.high + slack
    if known is not None:
        aged = abs(last - known[2]) // _DRIFT
        both = max(low, known[0] - aged), min(high, known[1] + aged)
        if both[0] <= both[1]:  # else one of the clocks was set
            low, high = both
    return [low, high, last]


def step_on_device(
    times: DeviceTimes, working: Collection[int], low: int, high: int
) -> StepOnDevice:
    """What the stamps of a step say.

    Args:
        times: of the step, whose own stamps come first.
        working: numbers of the names whose sections give the device work.
        low: of the bounds of host clock less device clock.
        high: the other.
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
    # A step that ended long ago ends with its last section: later stamps are none of it.
    stamps = sorted(stamp for stamp in stamps if step.begin <= stamp[0] <= step.end)
    soon = max(_SOON_NS, (step.end - step.begin) // _SOON_PART)
    host = device = unknown = 0
    for (before, _), (passed, given) in pairwise(stamps):
        # So long did the stamp stand behind other work, at least and at most.
        least, most = passed + low - given, passed + high - given
        if least > soon:
            device += passed - before
        elif most <= soon:
            host += passed - before
        else:
            unknown += passed - before
    return Pace(host, device, unknown)
