"""Open journal files of a folder, with repair of removed or truncated files."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from otel_mlperf.errors import JournalError
from otel_mlperf.journal.journal_folder import drop_moved, journals_in
from otel_mlperf.journal.journal_reader import JournalReader
from otel_mlperf.journal.section_sums import drop_sums

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

_log = logging.getLogger("otel_mlperf.agent")


class OpenJournals:
    """Journals of one folder: journals being read, and journals that were read to the end.

    Args:
        folder: folder of the journals.
        own: memory maps of the journals that this process itself writes, by path. These files must
            not be opened again: closing such a file would release its lock.
        take_over: called before a journal is opened: stops the ``FirstLook`` thread, which until
            then freed the journals' slots.
    """

    def __init__(
        self, folder: Path, own: dict[str, mmap.mmap], take_over: Callable[[], None]
    ) -> None:
        self._folder, self._own, self._take_over = folder, own, take_over
        self.readers: dict[str, JournalReader] = {}
        self.ended: dict[str, JournalReader] = {}
        """Journals that were read to their end. Their files are removed after the tables contain
        all rows."""
        self._bad: set[str] = set()
        self._cut: set[str] = set()

    def open_new(self) -> list[str]:
        """Open the folder's new journals; return the names of the journals that could be opened."""
        names = {path.name for path in journals_in(self._folder)}
        names |= {Path(path).name for path in self._own}
        new = sorted(names - self.readers.keys() - self.ended.keys() - self._cut)
        return [name for name in new if self.open(name)]

    def open(self, name: str) -> bool:
        """Open a journal; return False if it is still being created or cannot be read."""
        # Must run first: if two threads freed slots, each would free slots that the other has not
        # read.
        self._take_over()
        reader = self._reader(name)
        if reader is not None:
            self.readers[name] = reader
        return reader is not None

    def _reader(self, name: str) -> JournalReader | None:
        path = str(self._folder / name)
        try:
            return JournalReader(path, self._own.get(path))
        except JournalError as error:
            # Retried at the next call.
            if str(error) not in self._bad:
                self._bad.add(str(error))
                _log.info("%s", error)
            return None

    def end(self, name: str) -> None:
        """Move a journal from ``readers`` to ``ended``."""
        self.ended[name] = self.readers.pop(name)

    def refresh(self) -> None:
        """Restore truncated files, and switch to files that replace removed ones."""
        for journals in (self.readers, self.ended):
            for name in [name for name, reader in journals.items() if reader.is_cut]:
                _log.warning("the journal %s was truncated: its unread rows are lost", name)
                if not journals[name].mend():  # reading it would raise SIGBUS
                    self._cut.add(name)
                    journals.pop(name).close()
        for name in [name for name, reader in self.readers.items() if reader.is_removed]:
            self._follow(name)

    def _follow(self, name: str) -> None:
        """If the process has replaced a journal's removed file, continue in the new file."""
        removed, made = self.readers[name], self._reader(name)
        if made is None:
            return
        if made.meta != removed.meta:  # the journal of another process
            made.close()
            return
        made.go_on_after(removed)
        removed.close()
        self.readers[name] = made
        _log.info(
            "the journal %s was removed; reading continues in the file that replaces it", name
        )

    def remove_ended(self) -> None:
        """Close ended journals; remove the files of these and of irreparably truncated journals."""
        for name in self._cut:
            self._remove(name)
        self._cut.clear()
        for name, reader in list(self.ended.items()):
            reader.close()
            self._remove(name)
            self._own.pop(str(self._folder / name), None)
            del self.ended[name]

    def _remove(self, name: str) -> None:
        path = self._folder / name
        drop_moved(str(path))
        drop_sums(str(path))
        path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close all journals."""
        for reader in [*self.readers.values(), *self.ended.values()]:
            reader.close()
