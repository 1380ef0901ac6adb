"""Damage log of a trace: each kind of damage with its count and first position.

Intact entries before and after damage are kept, so that callers can use them and report the damage.
The kinds are:

- ``truncated``, ``too_large``, ``expands_too_much``, ``bad_compression``, ``bad_checksum``,
  ``file_changed``: the text is incomplete, or the file is not read to its end;
- ``byte_order_mark``, ``trailing_bytes``, ``unexpected_text``, ``unreadable_field``: damage
  outside of events;
- ``unreadable_event``, ``too_deep``, ``not_an_event``: an entry that is lost;
- ``bad_escape``, ``unescaped_quote``, ``control_character``, ``invalid_utf8``, ``lone_surrogate``,
  ``not_a_number``: an entry that was repaired and kept;
- ``missing_field``, ``wrong_type``, ``not_a_number``, ``number_too_long``, ``out_of_range``: a
  value that is missing or unusable; the entry is kept without it, or lost if it is the phase or a
  time;
- ``negative_duration``: a record that ends before its start; it is lost, because the profiler never
  filled in its end;
- ``no_time``: a record at time 0 or with a duration of years, far from all other records; it is
  lost, because the profiler never filled in its time;
- ``unmatched_begin``, ``unmatched_end``: half of an event that was written in two entries.
"""

from __future__ import annotations

from otel_mlperf.kineto.trace_events import Damage

EXAMPLE_CHARACTERS = 120


class DamageLog:
    """Count, first position and example of each kind of damage."""

    def __init__(self) -> None:
        self._kinds: dict[str, Damage] = {}

    def add(self, kind: str, offset: int, example: str = "", *, times: int = 1) -> None:
        """Add occurrences of one kind of damage, of which the first is at byte ``offset``."""
        known = self._kinds.get(kind)
        if known is None:
            self._kinds[kind] = Damage(kind, times, offset, printable(example))
        elif offset < known.offset:
            self._kinds[kind] = Damage(
                kind, known.occurrences + times, offset, printable(example) or known.example
            )
        else:
            self._kinds[kind] = known._replace(occurrences=known.occurrences + times)

    def __contains__(self, kind: str) -> bool:
        return kind in self._kinds

    def all(self) -> list[Damage]:
        """Return each kind of damage that occurred, ordered by first position in the file."""
        return sorted(self._kinds.values(), key=lambda damage: (damage.offset, damage.kind))


def printable(text: str) -> str:
    """Return the first ``EXAMPLE_CHARACTERS`` of ``text`` with all but printable ASCII escaped."""
    return ascii(text[:EXAMPLE_CHARACTERS])[1:-1] if text else ""
