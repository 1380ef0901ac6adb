"""Unambiguous labels of sections that have the same name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


class Placed(Protocol):
    """Figures of one section in one place."""

    @property
    def name(self) -> str:
        """Name as a summary shows it."""

    @property
    def path(self) -> str:
        """For sections outside steps: names from below the run."""

    @property
    def phase(self) -> str:
        """Phase of the steps that contain it; empty outside steps."""


def place_labels(places: Sequence[Placed]) -> list[str]:
    """Return names; a name that occurs repeatedly gets its path, or the phase of its steps."""
    phases: dict[str, set[str]] = {}
    for one in places:
        phases.setdefault(one.name, set()).add(one.phase)
    known = [one.name for one in places]
    return [
        _label(one, phases[one.name]) if known.count(one.name) > 1 else one.name for one in places
    ]


def _label(one: Placed, phases: set[str]) -> str:
    # The phase comes first, as in a path: it still distinguishes names that are cut.
    in_phase = f"{one.phase}/{one.name}" if one.phase and len(phases) > 1 else one.name
    return one.path or in_phase
