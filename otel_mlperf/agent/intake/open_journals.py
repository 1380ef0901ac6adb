"""Which journal files of a folder are open, and what if one is removed or cut short meanwhile?"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from otel_mlperf.errors import JournalError
from otel_mlperf.journal.journal_folder import journals_in
from otel_mlperf.journal.journal_reader import JournalReader

if TYPE_CHECKING:
    import mmap

_log = logging.getLogger("otel_mlperf.agent")


class OpenJournals:
    """The journals of one folder that are being read, and those that were read to their end.

    Args:
        folder: where the journals lie.
        own: journals of this very process by path, whose files must not be opened again.
    """

    def __init__(self, folder: Path, own: dict[str, mmap.mmap]) -> None:
        self._folder, self._own = folder, own
        self.readers: dict[str, JournalReader] = {}
        self.ended: dict[str, JournalReader] = {}
        """Mapped still: the file goes only when tables hold what was in it."""
        self._bad: set[str] = set()
        self._cut: set[str] = set()

    def open_new(self) -> list[str]:
        """Opens those that are new since the last call; their names."""
        names = {path.name for path in journals_in(self._folder)}
        names |= {Path(path).name for path in self._own}
        new = sorted(names - self.readers.keys() - self.ended.keys() - self._cut)
        return [name for name in new if self.open(name)]

    def open(self, name: str) -> bool:
        """Opens one; False for one that a process is still making, or that is none of ours."""
        reader = self._reader(name)
        if reader is not None:
            self.readers[name] = reader
        return reader is not None

    def _reader(self, name: str) -> JournalReader | None:
        path = str(self._folder / name)
        try:
            return JournalReader(path, self._own.get(path))
        except JournalError as error:
            # Looked at again next time.
            if str(error) not in self._bad:
                self._bad.add(str(error))
                _log.info("%s", error)
            return None

    def end(self, name: str) -> None:
        """One has been read to its end."""
        self.ended[name] = self.readers.pop(name)

    def refresh(self) -> None:
        """Follows files that were made again, and lets go of those that were cut short."""
        for journals in (self.readers, self.ended):
            for name in [name for name, reader in journals.items() if reader.is_cut]:
                _log.warning("%s was cut short by somebody: what was not read of it is lost", name)
                self._cut.add(name)
                journals.pop(name).close()
        for name in [name for name, reader in self.readers.items() if reader.is_removed]:
            self._follow(name)

    def _follow(self, name: str) -> None:
        """Goes on in the file that the process has made in place of a removed one, once it has."""
        removed, made = self.readers[name], self._reader(name)
        if made is None:
            return
        if made.meta != removed.meta:  # of a later process
            made.close()
            return
        made.go_on_after(removed)
        removed.close()
        self.readers[name] = made
        _log.info("%s was removed; it is read on in the file that was made again", name)

    def remove_ended(self) -> None:
        """Removes the files of those that have ended, and of those that were cut short."""
        for name in self._cut:
            (self._folder / name).unlink(missing_ok=True)
        self._cut.clear()
        for name, reader in list(self.ended.items()):
            reader.close()
            (self._folder / name).unlink(missing_ok=True)
            self._own.pop(str(self._folder / name), None)
            del self.ended[name]

    def close(self) -> None:
        """Gives up every mapping."""
        for reader in [*self.readers.values(), *self.ended.values()]:
            reader.close()
