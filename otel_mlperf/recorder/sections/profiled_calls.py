"""Selection of section calls to profile, and storage of their profiles.

The first few calls of each section with ``profile=`` are profiled, one at a time in a process. A
profiler slows down the call and its step, so the rows of both are flagged as profiled.
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

_MAX_SPOTS: Final = 50
_PROFILED: Final = int(Flag.PROFILED)
_MAX_SECTIONS: Final = 100
"""Maximum number of profiled sections of a process; limits stored profiles to some megabytes."""


class SlowedSteps(Protocol):
    """Receiver of notifications that a profiler was switched on or off."""

    def note_profiler(self, profiler: object, *, is_on: bool) -> None:
        """Register that a profiler is on or off, to flag the steps that end while one is on."""


class Profiler:
    """Profiler of one call of a section."""

    __slots__ = ("_profiles", "entry", "number", "phase", "profile")

    def __init__(self, profiles: ProfiledCalls, entry: int, number: int, about: Recording) -> None:
        self._profiles, self.entry, self.number = profiles, entry, number
        self.profile = PROFILES[about.registry.profiled[entry]]()
        self.phase = about.registry.phase

    def off(self) -> None:
        """Switch the profiler off and allow another call to be profiled; idempotent."""
        self.profile.off()
        self._profiles.release(self)

    def attributes(self) -> dict[str, Any]:
        """Return attributes for the section's span; empty if the profiler could not be started."""
        if not self.profile.has_started:
            return {}
        return {names.SECTION_PROFILER: self.profile.kind, names.SECTION_PROFILED: self.number}


class ProfiledCalls:
    """Selection and storage of the profiled calls of one recording."""

    def __init__(self, recording: Recording, parents: Parents) -> None:
        self._recording, self._parents = recording, parents
        self._requested = recording.registry.profiled
        self._started: dict[int, int] = {}
        """Number of profiled calls of each section, by the number of its name."""
        self._passed_over: dict[int, int] = {}
        self._remaining_calls = _MAX_SECTIONS * recording.config.profiled_calls
        self._current: Profiler | None = None
        self.steps: SlowedSteps | None = None
        recording.at_retire.append(self._stop)

    def begin(self, section: SectionContext) -> None:
        """Start to profile a section that was just opened, unless a limit of calls is reached."""
        if section.entry not in self._requested:
            return
        place = None
        try:
            place = self._place(section)
            if place is None:
                return
            # Stored before the profiler is on, so that it is switched off after an interrupt, too.
            extra_of(section).profiled = self._current = place
            place.profile.begin()
            if place.profile.has_started:
                self._mark(section, place)
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)
            if place is not None:
                place.off()

    def announce_call(self, section: SectionContext) -> None:
        """Mark a section that is about to be entered as the call of a decorated function."""
        if self._has_calls_left(section.entry):  # otherwise no ``Extra`` is needed
            extra_of(section).is_call = True

    def in_place_of(self, section: SectionContext, function: Any) -> Any:
        """Return the function to call in an open section: a profiled copy, or ``function``."""
        place = self._current
        if place is None or place.entry != section.entry:
            return function
        try:
            return place.profile.in_place_of(function)
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)
            return function

    def _place(self, section: SectionContext) -> Profiler | None:
        entry = section.entry
        if not self._has_calls_left(entry):
            return None
        if self._requested[entry] == LineProfile.kind and not extra_of(section).is_call:
            warn_once("span(%r, profile='lines') supports only functions: a block is not profiled",
                      self._name(entry))  # fmt: skip
            return None
        if self._current is not None:
            if self._current.entry == entry:
                return None  # a recursive call is part of the profiled call
            self._passed_over[entry] = self._passed_over.get(entry, 0) + 1
            warn_once("a call of %s is not profiled, because another section is being profiled "
                      "(around the call, or in another thread); a later call will be profiled",
                      self._name(entry))  # fmt: skip
            return None
        number = self._started[entry] = self._started.get(entry, 0) + 1
        self._remaining_calls -= 1
        return Profiler(self, entry, number, self._recording)

    def _has_calls_left(self, entry: int) -> bool:
        return (
            self._remaining_calls > 0
            and self._started.get(entry, 0) < self._recording.config.profiled_calls
        )

    def _mark(self, section: SectionContext, place: Profiler) -> None:
        extra = extra_of(section)
        extra.flags |= _PROFILED
        step = extra.step or self._parents.steps.get(root_of(section))
        if step is not None and step.section.track == section.track:
            extra_of(step.section).flags |= _PROFILED
        if self.steps is not None:
            self.steps.note_profiler(place, is_on=True)

    def release(self, place: Profiler) -> None:
        """Register that the profiler ``place`` is off, so that another can start; idempotent."""
        if self.steps is not None:
            self.steps.note_profiler(place, is_on=False)
        if self._current is place:
            self._current = None

    def write(self, section: SectionContext, place: Profiler) -> None:
        """Append the profile of an ended call, recorded by ``place``, to the run folder."""
        if self._recording.is_retired:
            return
        try:
            call = self._result(section, place)
            append_call(self._recording.meta.run_folder, self._recording.meta.pid, call)
        except OSError as error:
            raise_foreign(error)
            warn_once("the profile of a section cannot be written: %s", error)
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)

    def _result(self, section: SectionContext, place: Profiler) -> ProfiledCall:
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
            spots=spots[:_MAX_SPOTS],
            more=len(spots[_MAX_SPOTS:]),
            kept_bytes=profile.kept_bytes,
            peak_bytes=profile.peak_bytes,
            left_out=profile.left_out,
            passed_over=self._passed_over.pop(section.entry, 0),
        )

    def _name(self, entry: int) -> str:
        return self._recording.registry.about(entry)[0]

    def _stop(self) -> None:
        if self._current is not None:
            self._current.off()
