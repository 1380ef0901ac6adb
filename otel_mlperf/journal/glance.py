"""What does a journal show to a passer-by, who takes nothing and writes nothing?

The file is mapped for reading only. Rows that the agent has freed are still there until newer ones
take their places, so the last few thousand can be looked at without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_mlperf.journal.journal_reader import Reader

if TYPE_CHECKING:
    from pathlib import Path

    from otel_mlperf.journal.journal_reader import Rows
    from otel_mlperf.journal.layout import Word
    from otel_mlperf.journal.meta import JournalMeta


class Glance:
    """One look at one journal.

    Raises:
        JournalError: it has gone, is no journal, or belongs to another user.
    """

    def __init__(self, path: Path) -> None:
        self._reader = Reader(str(path), is_writable=False)
        self.entries: dict[int, list[Any]] = self._reader.new_entries()
        """What numbers stand for (see ``layout``)."""

    @property
    def meta(self) -> JournalMeta:
        """Whose journal it is."""
        return self._reader.meta

    @property
    def is_running(self) -> bool:
        """Whether its process still records: it lives, and has not closed the journal."""
        return self._reader.is_running

    def word(self, word: Word) -> int:
        """One header word."""
        return self._reader.word(word)

    def open_sections(self) -> Rows:
        """A copy of the sections that are open."""
        return self._reader.open_sections()

    def newest_rows(self, most: int) -> Rows:
        """A copy of at most so many rows of any kind, the newest, in the order of their slots."""
        return self._reader.ring.newest(most)

    def close(self) -> None:
        """Gives up the file."""
        self._reader.close()
