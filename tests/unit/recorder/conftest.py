"""Shared by tests of the recorder: a run without an agent, and its journal read back."""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

import otel_mlperf as om
from otel_mlperf.journal.journal_reader import JournalReader
from otel_mlperf.journal.layout import Flag, Kind, Word
from otel_mlperf.journal.ring_scan import PayloadParts, rows_of_kind
from otel_mlperf.recorder.core import faults
from otel_mlperf.recorder.sections.section_context import CURRENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@dataclass
class Row:
    """One row of a journal, with its name and payload looked up."""

    kind: Kind
    start: int
    end: int
    span: int
    parent: int
    root: int
    track: int
    flags: int
    name: str = ""
    category: str = ""
    phase: str = ""
    constant: dict[str, Any] = field(default_factory=dict)
    payload: dict[str, Any] = field(default_factory=dict)

    @property
    def is_error(self) -> bool:
        return bool(self.flags & Flag.ERROR)

    @property
    def attributes(self) -> dict[str, Any]:
        return self.payload.get("a", {})

    @property
    def error(self) -> list[str]:
        return self.payload.get("e", [])

    @property
    def events(self) -> list[tuple[str, dict[str, Any]]]:
        return [(name, attributes) for _, name, attributes in self.payload.get("v", [])]


class Recording:
    """A run under test; what it wrote is read through the writer's own mapping."""

    def __init__(self, run: om.Run) -> None:
        self.run = run
        self.recorder = run._recorder
        self.journal = self.recorder.journal
        self.reader = JournalReader(self.journal.path, self.journal.buffer)
        self.entries: dict[int, list[Any]] = {}
        self.may_fail = False
        self._rows: list[Row] = []
        self._parts = PayloadParts()

    @property
    def span(self) -> int:
        """Span id of the run's section."""
        return self.recorder.meta.run_span

    def rows(self, kind: Kind | None = None) -> list[Row]:
        """Everything written so far, in slot order."""
        self.entries.update(self.reader.new_entries())
        rows = self.reader.take()
        self._parts.feed(rows_of_kind(rows, Kind.PAYLOAD))
        self._rows += [self._row(*row) for row in rows.tolist() if row[7] & 15 not in (0, 6, 7)]
        return [row for row in self._rows if kind in (None, row.kind)]

    def forget_rows(self) -> None:
        """From here on as if nothing had been written yet: looking at thousands takes long."""
        self._rows.clear()

    def sections(self, name: str | None = None) -> list[Row]:
        """Section rows, of one name."""
        return [row for row in self.rows(Kind.SECTION) if name in (None, row.name)]

    def one(self, name: str) -> Row:
        """The only section of that name."""
        (row,) = self.sections(name)
        return row

    def begins(self, name: str) -> list[Row]:
        return [row for row in self.rows(Kind.BEGIN) if row.name == name]

    def numbers(self, name: str = "train.step") -> list[int]:
        """The user's numbers of the steps that ended, in order."""
        of = {row.span: row.end for row in self.begins(name)}
        return [signed(of[row.span]) for row in self.sections(name)]

    def open(self) -> list[str]:
        """Names of the sections that are open, as a reader sees them."""
        self.rows()
        done = {row.span for row in self._rows if row.kind in (Kind.SECTION, Kind.CANCEL)}
        table = self.reader.open_sections().tolist()
        return [self.entries[row[5]][1] for row in table if row[0] not in done]

    def cells(self) -> dict[tuple[Any, ...], list[list[int]]]:
        """Words of each cell by its entry's content."""
        self.rows()
        found: dict[tuple[Any, ...], list[list[int]]] = {}
        for cell in self.reader.cells().tolist():
            content = self.entries[cell[0]][1:]
            key = tuple(tuple(map(tuple, i)) if isinstance(i, list) else i for i in content)
            found.setdefault(key, []).append(cell[1:])
        return found

    def word(self, word: Word) -> int:
        return self.reader.word(word)

    def release(self) -> None:
        """Gives up the journal, which without an agent stays with its process, thousands of MB."""
        if self.recorder.config.agent == "none":
            self.journal.release()

    def _row(self, start, end, span, parent, root, track, name, flags, _seq) -> Row:
        kind = Kind(flags & 15)
        row = Row(kind, start, end, span, parent, root, track, flags)
        if kind is not Kind.FOREIGN:
            _, row.name, row.category, row.phase, row.constant = self.entries[name]
        if flags & Flag.HAS_PAYLOAD:
            row.payload = self._parts.pop(span)
        return row


def signed(word: int) -> int:
    """A header or row word as the signed number that it holds."""
    return word - (1 << 64) if word >> 63 else word


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    """No test leaves a run, a section in its context, or a mute log behind."""
    before = CURRENT.get()
    faults._said.clear()
    yield
    om.stop()
    assert CURRENT.get() is before


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Recording]]:
    """Starts a run without an agent; an exception inside the recorder fails the test."""
    for variable in [v for v in os.environ if v.startswith(("OTEL_", "RANK", "WORLD_", "SLURM"))]:
        monkeypatch.delenv(variable)
    made: list[Recording] = []

    def begin(name: str = "test", **settings: Any) -> Recording:
        quiet = {"agent": "none", "console": False, "readings": "none"}
        made.append(Recording(om.start(name, **({"dir": tmp_path / "runs"} | quiet | settings))))
        return made[-1]

    faults.count_in(None)
    faults._Faults.next_log_ns = 0
    yield begin
    om.stop()
    for recording in made:
        with contextlib.suppress(OSError):
            os.unlink(recording.journal.path)
            os.rmdir(os.path.dirname(recording.journal.path))
        if not recording.may_fail:
            errors = recording.word(Word.INTERNAL_ERRORS)
            assert not errors, "the recorder failed inside: see the log"
        recording.release()


@pytest.fixture
def recording(start: Callable[..., Recording]) -> Recording:
    """An active run."""
    return start()


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What was logged so far."""
    caplog.set_level(logging.WARNING, "otel_mlperf")
    return lambda: [record.getMessage() for record in caplog.records]
