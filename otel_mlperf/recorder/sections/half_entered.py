"""What if entering or leaving a section is cut off half way?

By Ctrl-C, by a full table, by a token of another context. The section is then opened or closed the
long way, once; what is the program's to see goes on.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from otel_mlperf.journal.layout import Word
from otel_mlperf.recorder.core.faults import internal_error, is_from_handler
from otel_mlperf.recorder.sections.section_context import CURRENT

if TYPE_CHECKING:
    from otel_mlperf.recorder.core.recorder import Recorder
    from otel_mlperf.recorder.sections.section import Section

NO_ENTRY = 1 << 62
"""``at`` of an open section for which the table had no room: indexing with it fails."""


def rescue_enter(recorder: Recorder, section: Section, error: BaseException, above: Any) -> Section:
    """Entering failed half way: the section is opened without a table entry, or not at all."""
    if isinstance(error, IndexError) and not recorder.journal.free and not recorder.is_retired:
        recorder.journal.count(Word.LOST_OPEN)
        section.at = NO_ENTRY
        section.t0 = time.monotonic_ns()
        recorder.make_current(section)
        return section
    if CURRENT.get() is section:
        CURRENT.set(above)  # not by its token, which may not have been stored yet
    section.at = getattr(section, "at", 0)
    recorder.forget(section)
    if not isinstance(error, Exception):
        raise error  # Ctrl-C came in between: it is the program's
    internal_error(error)
    return section


def rescue_exit(
    recorder: Recorder, section: Section, t1: int, slot: int, error: BaseException
) -> None:
    """Leaving failed half way: does the rest of it, once."""
    t1 = t1 or time.monotonic_ns()
    try:
        at = getattr(section, "at", 0)
        if at and not recorder.is_retired:
            recorder.leave(section)
            if slot and _is_published(recorder, slot):
                recorder.forget(section)
            else:
                recorder.close(section, t1)
    except Exception as problem:  # noqa: BLE001 - recording never raises
        internal_error(problem)
    if not isinstance(error, Exception) or is_from_handler(error):
        raise error
    if not isinstance(error, ValueError | RuntimeError | IndexError | AttributeError):
        internal_error(error)


def _is_published(recorder: Recorder, slot: int) -> bool:
    shape = recorder.journal.shape
    at = shape.ring_at + ((slot & (shape.rows - 1)) << 6)
    return bool(recorder.journal.words[(at >> 3) + 7] == slot)
