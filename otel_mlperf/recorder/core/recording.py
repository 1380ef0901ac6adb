"""State shared by all parts of the recorder, and the active recording of the process.

A recording is plain data: one process's recording into one journal. The parts (sections, steps,
instruments) know this module and the layers below them. The whole is
``lifecycle.recorder.Recorder``, a ``Recording`` with its parts added. All of it may be used in
signal handlers and in several threads concurrently, so nothing here acquires a lock.
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
        """Whether nothing is recorded any more: the run is over, or this is a fork of its process.
        """
        # 62 random bits, then counted up: one C call per id, and never the program's `random`.
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
        """Called when nothing is recorded any more, also in a forked child."""
        self.replacement: Callable[[], Any] = lambda: None
        """Makes the recording that replaces this one once it is retired: a forked child's own."""


_active: Any = None
watchers: list[Callable[[Any], None]] = []
"""Called with the active recording (None: nothing) when it changes, or something about it may have
changed. The public calls keep copies in globals of their own, because those are the fastest lookup.
"""


def activate(recorder: Recording | None) -> None:
    """Send the program's sections and values to ``recorder`` from now on; None: nowhere."""
    global _active
    _active = recorder
    refresh()


def refresh() -> None:
    """Notify the watchers: the phase changed, the process was forked, or torch was imported."""
    for look in watchers:
        look(_active)


# Any: it is the composed recorder, whose type is in a layer above this module.
def active() -> Any:
    """Return what records in this process at the moment; None: nothing does."""
    recorder = _active
    if recorder is not None and recorder.is_retired:
        return recorder.replacement()
    return recorder


def unreplaced() -> Any:
    """Return the active recording without making a journal for a forked child that has none yet."""
    return _active
