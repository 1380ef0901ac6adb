"""Registry of section names, with a number for each combination of name, category and phase.

The journal contains each combination once; a row refers to it by its number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from otel_mlperf import names
from otel_mlperf.journal.layout import MAX_ENTRIES, OTHER
from otel_mlperf.recorder.core.attribute_values import safe_attributes, safe_name_text
from otel_mlperf.recorder.core.faults import warn_once
from otel_mlperf.recorder.core.section_choice import matches
from otel_mlperf.redaction import IN_PROCESS
from otel_mlperf.settings.setting_values import bound_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from otel_mlperf.settings.setting_values import Bounds

ALL: Final = "all"
"""Value of a category setting that selects every category."""

OUTSIDE = frozenset((names.CHECKPOINT, names.PHASE, names.EPOCH, names.PROFILER))
"""Categories that belong to the run's trace even inside a step."""
TOO_MANY_NAMES = (
    "more than %d section names: further names are recorded as 'other'; use attributes for parts "
    "of a name that vary"
)


_OF_ANY_PROGRAM = frozenset({names.RUN, names.STEP, names.GARBAGE_COLLECTION})


class Nameable(Protocol):
    """Interface of decorated functions and section handles that the program keeps for reuse."""

    name: Any
    category: str | None
    attributes: Mapping[str, Any] | None
    resources: bool
    profile: str


class Registry:
    """Registry of the names of one journal.

    Args:
        entry: function that adds an entry to the journal and returns the entry's number.
        measured: categories of sections with measured resource usage; ``all`` means every category.
        printed: categories and name patterns of the sections whose calls are printed.
        bounds: default time limits of requests, by name pattern.
    """

    def __init__(
        self,
        entry: Callable[[Sequence[object]], int],
        measured: Collection[str] = (),
        printed: Collection[str] = (),
        bounds: Bounds = (),
    ) -> None:
        self._journal_entry, self._measured_kinds = entry, measured
        self._printed_patterns, self._bounds = printed, bounds
        self.at_new_name: list[Callable[[], None]] = []
        """Functions called before a new name is registered, e.g. to detect new imports."""
        self.phase = names.TRAIN
        self.known: dict[Any, int] = {}
        """Numbers of the current phase's names on the fast path, by lookup key.

        A key is a name, a name with its category, or a handle.
        """
        self._known_of = {names.TRAIN: self.known}
        self.slow: set[int] = set()
        """Numbers of names whose sections take the slow path."""
        self._slow_known: dict[tuple[str, Any], int] = {}
        """Numbers of the names on the slow path, by phase and lookup key."""
        self.outside: set[int] = set()
        """Numbers of names whose sections belong to the run's trace even inside a step."""
        self.requests: set[int] = set()
        """Numbers of names whose sections are traces of their own unless in another request."""
        self.printed: set[int] = set()
        """Numbers of names whose calls are printed."""
        self.measured: set[int] = set()
        """Numbers of names whose sections measure their resource usage."""
        self.profiled: dict[int, str] = {}
        """Kind of profile (e.g. ``lines``) of names whose calls are profiled, by number."""
        self.on_device: set[int] = set()
        """Numbers of names whose sections record CUDA events (stamps) at their start and end."""
        self._device_kinds: Collection[str] = ()
        self._about: dict[int, tuple[str, str, Mapping[str, Any] | None]] = {}

    def entry(
        self,
        key: Any,
        name: str,
        category: str | None = None,
        constant: Mapping[str, Any] | None = None,
        *,
        resources: bool = False,
        profile: str = "",
    ) -> int:
        """Return the number of a name in the current phase; register a new name under ``key``.

        The result is ``OTHER`` if the journal has no number left. The other arguments apply to a
        new name only: the category (default: implied by the name), attributes of all sections,
        whether to measure resource usage, and the kind of profile.
        """
        number = self.known.get(key) or self._slow_known.get((self.phase, key))
        if number is not None:
            return number
        for notify in self.at_new_name:
            notify()
        text = safe_name_text(name)
        kind = implied_category(text) if category is None else safe_name_text(category)
        if kind == names.REQUEST and self._bounds:
            constant = self._bounded(text, constant)
        number = self.register(text, kind, self.phase, constant)
        if number == OTHER:
            warn_once(TOO_MANY_NAMES, MAX_ENTRIES)
            return number
        for group, is_in in (
            (self.outside, kind in OUTSIDE),
            (self.requests, kind == names.REQUEST),
            (self.printed, matches(self._printed_patterns, text, kind)),
        ):
            if is_in:
                group.add(number)
                self.slow.add(number)
        if profile:
            self.profiled[number] = profile
            self.slow.add(number)
        self.watch(number, kind, resources=resources)
        self._remember(key, number)
        return number

    def _bounded(self, name: str, constant: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Return a request's attributes, adding the settings' time limit if they have none."""
        bound = bound_of(self._bounds, name)
        settings = {} if bound is None else {names.SECTION_BOUND: bound}
        return {**settings, **(constant or {})}

    @property
    def has_sections(self) -> bool:
        """Whether a name other than those of run, steps and garbage collections is registered."""
        about = self._about.copy().values()
        return any(kind not in _OF_ANY_PROGRAM for _, kind, _ in about)

    def watch(self, number: int, category: str, *, resources: bool = False) -> None:
        """Enable resource usage and device time for a name, where the settings require it."""
        kinds = self._measured_kinds
        if resources or category in kinds or ALL in kinds:
            self.measured.add(number)
            self.slow.add(number)
        if self._is_on_device(category):
            self.on_device.add(number)
            self.slow.add(number)

    def stamp_on_device(self, categories: Collection[str]) -> None:
        """Enable stamps (CUDA events) for steps and for sections of these categories."""
        self._device_kinds = categories
        for number, (_, category, _) in list(self._about.items()):
            if self._is_on_device(category):
                self.on_device.add(number)
                self.slow.add(number)
        for phase, known in list(self._known_of.items()):
            for key, number in list(known.items()):
                if number in self.slow:
                    # Add before removing: a concurrent lookup must always find the name.
                    self._slow_known[phase, key] = number
                    known.pop(key, None)

    def _is_on_device(self, category: str) -> bool:
        kinds = self._device_kinds
        if category == names.RUN:
            return False
        return category in kinds or ALL in kinds or (category == names.STEP and bool(kinds))

    def _remember(self, key: Any, number: int) -> None:
        if number in self.slow:
            self._slow_known[self.phase, key] = number
        else:
            self.known[key] = number  # sections of these names take the fast path

    def register(
        self, name: str, category: str, phase: str, constant: Mapping[str, Any] | None = None
    ) -> int:
        """Register a name in the journal; return its number, or ``OTHER`` if no number is left."""
        number = self._journal_entry(["section", name, category, phase, dict(constant or {})])
        if number != OTHER:
            self._about[number] = (name, category, constant)
        return number

    def entry_of_handle(self, handle: Nameable) -> int:
        """Return the number of a handle's name in the current phase; register the name if new."""
        number = self.known.get(handle) or self._slow_known.get((self.phase, handle))
        if number is not None:
            return number
        constant = IN_PROCESS.values(safe_attributes(handle.attributes or {}))
        name = safe_name_text(handle.name)
        # The key is the content, not the handle: a function that is decorated again in each call
        # must not register a new name each time.
        key = (name, handle.category, repr(constant), handle.resources, handle.profile)
        how: dict[str, Any] = {"resources": handle.resources, "profile": handle.profile}
        number = self.entry(key, name, handle.category, constant, **how)
        if number != OTHER and len(self.known) + len(self._slow_known) < 4 * MAX_ENTRIES:
            self._remember(handle, number)
        return number

    def about(self, entry: int) -> tuple[str, str]:
        """Return the name and category of an entry, by its number."""
        return self.described(entry)[:2]

    def described(self, entry: int) -> tuple[str, str, Mapping[str, Any] | None]:
        """Return name, category and constant attributes; an unknown entry is named ``other``."""
        return self._about.get(entry, ("other", names.OTHER, None))

    def set_phase(self, phase: str) -> str:
        """Make ``phase`` the current phase and return the previous one."""
        before, self.phase = self.phase, phase
        self.known = self._known_of.setdefault(phase, {})
        return before


def implied_category(name: str) -> str:
    """Return the category implied by a name or by its last dotted part; otherwise ``other``."""
    known = names.CATEGORY_OF
    return known.get(name) or known.get(name.rpartition(".")[2]) or names.OTHER
