"""Unambiguous labels of sections that have the same name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


class Placed(Protocol):
    """Figures of one section in one place."""

    @property
    def name(self) -> str:
        """As a summary shows it."""

    @property
    def path(self) -> str:
        """Outside steps: names from below the run."""

    @property
    def phase(self) -> str:
        """Of the steps that it is in; empty outside."""


def place_labels(places: Sequence[Placed]) -> list[str]:
    """Names; of one that is there more than once its path, or the phase of its steps."""
    phases: dict[str, set[str]] = {}
    for one in places:
        phases.setdefault(one.name, set()).add(one.phase)
    known = [one.name for one in places]
    return [
        _label(one, phases[one.name]) if known.count(one.name) > 1 else one.name for one in places
    ]


def _label(one: Placed, phases: set[str]) -> str:
    # The phase in front, as a path has it: of a name that is cut it is what tells them apart.
    in_phase = f"{one.phase}/{one.name}" if one.phase and len(phases) > 1 else one.name
    return one.path or in_phase
