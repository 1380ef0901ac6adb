"""State shared by all parts of the recorder, and the active recording of the process.

A ``Recording`` contains the data of one process's recording into one journal. The parts of the
recorder (sections, steps, instruments) import only this module and the layers below them.
``lifecycle.recorder.Recorder`` is a ``Recording`` with its parts added. Signal handlers and
concurrent threads may use a recording, so its code acquires no lock.
"""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any

from otel_mlperf.recorder.core.name_registry import Registry
from otel_mlperf.recorder.core.section_choice import SectionChoice, words
from otel_mlperf.recorder.core.tracks import CallerTracks
from otel_mlperf.settings.setting_values import parse_bounds
from otel_mlperf.settings.trace_sampler import make_sampler

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.journal.journal_writer import Journal
    from otel_mlperf.journal.meta import JournalMeta
    from otel_mlperf.settings.config import Config


class Recording:
    """Recording of one process into one journal."""

    def __init__(self, journal: Journal, meta: JournalMeta, config: Config) -> None:
        self.journal = journal
        self.meta = meta
        self.config = config
        self.is_retired = False
        """Whether recording has ended: the run has ended, or this is a forked child."""
        # A counter with a random start: costs one C call per id, and leaves the state of the
        # program's `random` unchanged.
        self.next_id: Callable[[], int] = itertools.count(
            int.from_bytes(os.urandom(8)) >> 2 | 1 << 62
        ).__next__
        self.tracks = CallerTracks(journal.entry)
        self.registry = Registry(
            journal.entry,
            config.resource_categories.split(","),
            words(config.print_sections),
            parse_bounds(config.request_within_s),
        )
        self.sampler = make_sampler(config.sampler, config.sampler_arg)
        self.choice = SectionChoice(words(config.exclude), words(config.aggregate))
        self.at_retire: list[Callable[[], None]] = []
        """Functions called when recording has ended, also in a forked child."""
        self.replacement: Callable[[], Any] = lambda: None
        """Returns the recording that replaces this one in a forked child; None if there is none."""


_active: Any = None
watchers: list[Callable[[Any], None]] = []
"""Functions called with the active recording, or None, when it or its properties may have changed.

The modules of the public calls copy the recording to their globals, which are looked up fastest.
"""


def activate(recorder: Recording | None) -> None:
    """Make ``recorder`` the process's active recording; None ends recording in the process."""
    global _active
    _active = recorder
    refresh()


def refresh() -> None:
    """Call ``watchers``, because the phase changed, the process forked or torch was imported."""
    for notify in watchers:
        notify(_active)


# Returns Any, because the type of the composed recorder is in a layer above this module.
def active() -> Any:
    """Return the recorder of this process, or None. A forked child first creates its own."""
    recorder = _active
    if recorder is not None and recorder.is_retired:
        return recorder.replacement()
    return recorder


def unreplaced() -> Any:
    """Return the active recording, even a retired one, without creating one in a forked child."""
    return _active
