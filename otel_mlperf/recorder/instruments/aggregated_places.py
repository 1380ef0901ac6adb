"""Lookup of the cell to which a call of an aggregated section is added.

A cell belongs to one name in one place, i.e. the list of enclosing sections. The agent can
therefore subtract the cell's time from the self time of the enclosing section. The lookup costs
microseconds, so each thread caches its result while the enclosing section is open.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_mlperf import names
from otel_mlperf.foreign_errors import raise_foreign
from otel_mlperf.recorder.core.thread_ident import get_ident
from otel_mlperf.recorder.core.tracks import is_in_task
from otel_mlperf.recorder.instruments.added_up_in_step import AddedUpInStep
from otel_mlperf.recorder.instruments.open_aggregate import AddUpCell, OpenAggregate, Place, cut
from otel_mlperf.recorder.sections.section_context import (
    CURRENT,
    SectionContext,
    aggregate_around,
    extra_of,
    root_of,
    sections_above,
)

if TYPE_CHECKING:
    from otel_mlperf.recorder.core.recording import Recording
    from otel_mlperf.recorder.instruments.cells import Cells
    from otel_mlperf.recorder.instruments.open_aggregate import AggregatedName
    from otel_mlperf.recorder.sections.parents import OpenStep, Parents

_REMEMBERED: Final = 4096
_DEEPEST: Final = 32
"""Maximum number of names in a path."""


class _Surroundings(NamedTuple):
    path: tuple[str, ...]
    """Names of the section and of the sections around it, below the step or run."""
    of_step: bool
    beside: bool
    """Whether the section, or one around it, is on another track than its enclosing section."""
    track: int | None
    """Track of the section. None for the run: sections directly in it are concurrent if their track
    has no steps.
    """


_NOTHING_AROUND: Final = _Surroundings((), False, False, None)


class _Memo(dict[tuple[Any, int], AddUpCell]):
    """One thread's cache of cells, by name and id of the enclosing section."""

    __slots__ = ("__weakref__",)


class ThreadMemo(threading.local):
    """Cells that the calling thread has looked up."""

    def __init__(self, memos: list[weakref.ref[_Memo]]) -> None:
        self.memo = _Memo()
        self.cells: dict[tuple[AggregatedName, Place], AddUpCell] = {}
        memos[:] = [known for known in memos if known() is not None]
        memos.append(weakref.ref(self.memo))


class AggregatedPlaces:
    """Cells and places of the aggregated sections of one recording."""

    def __init__(self, recording: Recording, parents: Parents, cells: Cells) -> None:
        self._recording, self._parents, self._cells = recording, parents, cells
        self._memos: list[weakref.ref[_Memo]] = []
        self.local = ThreadMemo(self._memos)
        self._found: dict[int, _Surroundings] = {}
        self._home = get_ident()
        self._loops: set[int] = set()
        """Tracks on which the first steps of phases started."""
        self._phases: set[str] = set()
        self._since_ns = 0

    def find(self, call: OpenAggregate, above: Any) -> AddUpCell:
        """Return a call's cell in the context ``above``; set the call's ``outer`` and ``track``."""
        recording = self._recording
        call.outer, call.track = None, recording.tracks.current()
        if recording.is_retired:
            return _NOWHERE
        section = self._parents.section_around(above, call.track)
        call.outer = outer = aggregate_around(above, call.track)
        cell = self._cell(call.of, self._place(call, section, outer))
        step = self._parents.step_around(section)
        if step is not None and cell.place.of_step:
            self._watch(step, cell)
        is_ours = isinstance(above, SectionContext) and above.at and above.track == call.track
        if is_ours and not is_in_task():
            memo = self.local.memo
            if len(memo) >= _REMEMBERED:
                memo.clear()
            memo[call.of, above.sid] = cell
        return cell

    def settle(self, call: OpenAggregate, t1: int) -> bool:
        """Exit a call that is not the current section; return whether to record its duration.

        ``t1`` is the monotonic end time in ns. A call that is not open is not recorded.
        """
        if not getattr(call, "at", 0):
            return False
        below: SectionContext | None = None
        for section in sections_above(CURRENT.get()):
            if section is call:
                cut(call, below, t1)
                try:
                    CURRENT.reset(call.token)
                except (ValueError, RuntimeError) as error:  # entered in another context
                    raise_foreign(error)
                return True
            below = section
        # The call is not around the current section: e.g. a generator was resumed elsewhere. Its
        # time is concurrent to that of the current section.
        call.outer = None
        place = call.cell.place._replace(section=0, beside=True)
        call.cell = self._cell(call.of, place)
        return bool(call.cell.word)

    def begin_phase(self, phase: str, step: SectionContext) -> None:
        """Register the first step of a phase, so that later calls outside steps use new cells.

        New cells separate the time after set-up from the set-up.
        """
        self._loops.add(step.track)
        if phase in self._phases:
            return
        self._phases.add(phase)
        self._since_ns = step.t0
        for known in list(self._memos):
            memo = known()
            if memo is not None:
                memo.clear()

    def outside(self, cell: AddUpCell, step: OpenStep) -> AddUpCell:
        """Return the cell outside steps that corresponds to a cell of a cancelled step."""
        around, place = step.around, cell.place
        name, entry = self._named(around)
        where = self._surroundings(around)
        outer = place.inside[-1:] or place.path[-1:] or (name,)
        section = entry if place.section == step.section.entry else place.section
        moved = Place(
            outer[0],
            place.phase,
            section,
            (*where.path, *place.path)[:_DEEPEST],
            place.inside,
            of_step=False,
            beside=place.beside or where.beside,
            since_ns=self._since_ns,
        )
        return self._cell(cell.of, moved)

    def _place(
        self, call: OpenAggregate, section: SectionContext | None, outer: OpenAggregate | None
    ) -> Place:
        recording = self._recording
        where = self._surroundings(section)
        step = None if section is None else self._parents.steps.get(root_of(section))
        is_own = section is not None and section.track == call.track
        inside = (*outer.cell.place.inside, outer.of.name)[:_DEEPEST] if outer is not None else ()
        if call.of.name in inside:  # recursion: a cell for each depth would use up the cells
            inside = inside[: inside.index(call.of.name)]
        name, entry = self._named(section)
        return Place(
            inside[-1] if inside else name,
            recording.registry.phase if step is None else step.phase,
            entry if is_own else 0,
            where.path,
            inside,
            where.of_step,
            beside=where.beside or not is_own or (where.of_step and step is None),
            since_ns=0 if where.of_step else self._since_ns,
        )

    def _named(self, section: SectionContext | None) -> tuple[str, int]:
        if section is None:
            return "", 0
        return self._recording.registry.about(section.entry)[0], section.entry

    def _surroundings(self, section: SectionContext | None) -> _Surroundings:
        """Return the surroundings of calls in ``section``, as the agent derives them from rows."""
        below: list[SectionContext] = []
        found, known = self._found, _NOTHING_AROUND
        if len(found) >= _REMEMBERED:
            found.clear()
        while section is not None:
            if section.sid in found:
                known = found[section.sid]
                break
            below.append(section)
            section = self._parents.parent_of(section)
        for one in reversed(below):
            known = found[one.sid] = self._below(known, one)
        return known

    def _below(self, around: _Surroundings, section: SectionContext) -> _Surroundings:
        meta, track = self._recording.meta, section.track
        name, category = self._recording.registry.about(section.entry)
        if section.sid == meta.run_span:
            return _Surroundings((), False, False, None)
        if category == names.STEP and section.sid == root_of(section) and not meta.is_child:
            return _Surroundings((), True, False, track)
        path = (*around.path, name)[:_DEEPEST]
        is_top = around.track is None
        beside = track not in (self._loops or {self._home}) if is_top else track != around.track
        return _Surroundings(path, around.of_step, around.beside or beside, track)

    def _cell(self, of: AggregatedName, place: Place) -> AddUpCell:
        cells = self.local.cells
        cell = cells.get((of, place))
        if cell is None:
            content = (
                "cell", "aggregate", of.name, of.category, place.enclosing, place.phase,
                place.section, "/".join(place.path), "/".join(place.inside), place.of_step,
                place.beside, place.since_ns,
            )  # fmt: skip
            words, word = self._recording.journal.words, self._cells.word(content, content)
            cell = cells[of, place] = AddUpCell(of, place, word)
            if word and words[word + 1]:  # the cell of an ended thread
                cell.least_ns, cell.most_ns = words[word + 3], words[word + 4]
        return cell

    def _watch(self, step: OpenStep, cell: AddUpCell) -> None:
        if step.added_up is None:
            step.added_up = AddedUpInStep(self._recording, step, self.outside)
            extra_of(step.section)  # makes its end take the slow path
        step.added_up.watch(cell, self.local.memo)


_NOWHERE: Final = AddUpCell(None, None, 0)  # type: ignore[arg-type]  # never read
