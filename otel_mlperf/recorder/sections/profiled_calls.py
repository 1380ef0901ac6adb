"""Selection of the calls of sections that are profiled, and storage of their profiles.

The first few calls of each section with ``profile=`` are profiled, one at a time in a process. A
profiled call lasts longer, and so does its step: both are marked, and the step counts as slowed
down by a profiler.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, Protocol

from otel_mlperf import names
from otel_mlperf.foreign_errors import raise_foreign
from otel_mlperf.journal.layout import Flag
from otel_mlperf.recorder.core.faults import internal_error, warn_once
from otel_mlperf.recorder.sections.line_profile import LineProfile
from otel_mlperf.recorder.sections.profile_kinds import PROFILES
from otel_mlperf.recorder.sections.section_context import extra_of, root_of
from otel_mlperf.run_files.hot_file import ProfiledCall, append_call

if TYPE_CHECKING:
    from otel_mlperf.recorder.core.recording import Recording
    from otel_mlperf.recorder.sections.parents import Parents
    from otel_mlperf.recorder.sections.section_context import SectionContext

_MOST_SPOTS: Final = 50
_PROFILED: Final = int(Flag.PROFILED)
_MOST_SECTIONS: Final = 100
"""Limit of one process, with all their calls: some megabytes at most."""


class SlowedSteps(Protocol):
    """Receiver of notifications that a profiler is on."""

    def note_profiler(self, profiler: object, *, is_on: bool) -> None:
        """Mark steps that end while the profiler is on as slowed down."""


class Profiler:
    """The profiler of one call, from when it is switched on."""

    __slots__ = ("_profiles", "entry", "number", "phase", "profile")

    def __init__(self, profiles: ProfiledCalls, entry: int, number: int, about: Recording) -> None:
        self._profiles, self.entry, self.number = profiles, entry, number
        self.profile = PROFILES[about.registry.profiled[entry]]()
        self.phase = about.registry.phase

    def off(self) -> None:
        """Switch the profiler off, whatever its state."""
        self.profile.off()
        self._profiles.release(self)

    def attributes(self) -> dict[str, Any]:
        """Return the attributes of the profiled section's span."""
        if not self.profile.has_begun:
            return {}
        return {names.SECTION_PROFILER: self.profile.kind, names.SECTION_PROFILED: self.number}


class ProfiledCalls:
    """The profiled calls of one recording."""

    def __init__(self, recording: Recording, parents: Parents) -> None:
        self._recording, self._parents = recording, parents
        self._asked_for = recording.registry.profiled
        self._begun: dict[int, int] = {}
        """Number of profiled calls of a section, by the section's number."""
        self._passed_over: dict[int, int] = {}
        self._room = _MOST_SECTIONS * recording.config.profiled_calls
        self._now: Profiler | None = None
        self.steps: SlowedSteps | None = None
        recording.at_retire.append(self._stop)

    def begin(self, section: SectionContext) -> None:
        """Start profiling an opened section, if it has calls left for it."""
        if section.entry not in self._asked_for:
            return
        place = None
        try:
            place = self._place(section)
            if place is None:
                return
            # Known before it is on: after an interrupt in between it is found and ended.
            extra_of(section).profiled = self._now = place
            place.profile.begin()
            if place.profile.has_begun:
                self._mark(section, place)
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)
            if place is not None:
                place.off()

    def announce_call(self, section: SectionContext) -> None:
        """Announce that a function is about to be called in a section that is not entered yet."""
        if self._has_left(section.entry):  # else the ``Extra`` would be unnecessary
            extra_of(section).is_call = True

    def in_place_of(self, section: SectionContext, function: Any) -> Any:
        """Return the function to be called in an open section instead of the decorated one."""
        place = self._now
        if place is None or place.entry != section.entry:
            return function
        try:
            return place.profile.in_place_of(function)
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)
            return function

    def _place(self, section: SectionContext) -> Profiler | None:
        entry = section.entry
        if not self._has_left(entry):
            return None
        if self._asked_for[entry] == LineProfile.kind and not extra_of(section).is_call:
            warn_once("span(%r, profile='lines') supports only functions: a block is not profiled",
                      self._name(entry))  # fmt: skip
            return None
        if self._now is not None:
            if self._now.entry == entry:
                return None  # recursion is part of the profiled call
            self._passed_over[entry] = self._passed_over.get(entry, 0) + 1
            warn_once("a call of %s is not profiled, because another section is being profiled "
                      "(around the call, or in another thread); a later call will be profiled",
                      self._name(entry))  # fmt: skip
            return None
        number = self._begun[entry] = self._begun.get(entry, 0) + 1
        self._room -= 1
        return Profiler(self, entry, number, self._recording)

    def _has_left(self, entry: int) -> bool:
        return self._room > 0 and self._begun.get(entry, 0) < self._recording.config.profiled_calls

    def _mark(self, section: SectionContext, place: Profiler) -> None:
        extra = extra_of(section)
        extra.flags |= _PROFILED
        step = extra.step or self._parents.steps.get(root_of(section))
        if step is not None and step.section.track == section.track:
            extra_of(step.section).flags |= _PROFILED
        if self.steps is not None:
            self.steps.note_profiler(place, is_on=True)

    def release(self, place: Profiler) -> None:
        """Allow another call to be profiled; idempotent."""
        if self.steps is not None:
            self.steps.note_profiler(place, is_on=False)
        if self._now is place:
            self._now = None

    def write(self, section: SectionContext, place: Profiler) -> None:
        """Write the profile of a call that has ended."""
        if self._recording.is_retired:
            return
        try:
            call = self._told(section, place)
            append_call(self._recording.meta.run_folder, self._recording.meta.pid, call)
        except OSError as error:
            raise_foreign(error)
            warn_once("the profile of a section cannot be written: %s", error)
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)

    def _told(self, section: SectionContext, place: Profiler) -> ProfiledCall:
        profile, meta = place.profile, self._recording.meta
        name, category = self._recording.registry.about(section.entry)
        if profile.left_out:
            warn_once("a call of %s is not profiled: %s", name, profile.left_out)
        spots = [] if profile.left_out else profile.spots()
        return ProfiledCall(
            section=name,
            category=category,
            phase=place.phase,
            kind=profile.kind,
            rank=meta.rank,
            restart=meta.restart,
            unix_ns=time.time_ns(),
            duration_ns=profile.duration_ns,
            spots=spots[:_MOST_SPOTS],
            more=len(spots[_MOST_SPOTS:]),
            kept_bytes=profile.kept_bytes,
            peak_bytes=profile.peak_bytes,
            left_out=profile.left_out,
            passed_over=self._passed_over.pop(section.entry, 0),
        )

    def _name(self, entry: int) -> str:
        return self._recording.registry.about(entry)[0]

    def _stop(self) -> None:
        """Switch off the profiler of a retired recording; in a forked child nothing else would."""
        if self._now is not None:
            self._now.off()
