"""Shared by tests of profiler windows: a run without an agent, and something to train."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import otel_mlperf as om
from otel_mlperf.journal.journal_reader import JournalReader
from otel_mlperf.journal.layout import Flag, Kind, Word
from otel_mlperf.journal.profiler_windows import Window, read_window
from otel_mlperf.journal.ring_scan import PayloadParts, rows_of_kind
from otel_mlperf.recorder.core import faults

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@dataclass
class Section:
    """One section row, with its name and what was recorded with it."""

    name: str
    start: int
    end: int
    span: int
    parent: int
    root: int
    flags: int
    payload: dict[str, Any]

    @property
    def is_profiled(self) -> bool:
        return bool(self.flags & Flag.PROFILED)


class Trained:
    """A run under test, and what it left."""

    def __init__(self, run: om.Run) -> None:
        self.run = run
        self.recorder = run._recorder
        self.folder: Path = run.path / "profiles"
        self._reader = JournalReader(self.recorder.journal.path, self.recorder.journal.buffer)
        self._rows: list[Any] = []
        self._entries: dict[int, list[Any]] = {}
        self._payloads = PayloadParts()
        model = torch.nn.Linear(8, 8)
        data = torch.randn(4, 8)
        self.work = lambda: model(data).sum().backward()

    def sections(self, *names: str) -> list[Section]:
        """Section rows so far, of those names."""
        rows = self._reader.take()
        self._entries |= self._reader.new_entries()
        self._payloads.feed(rows_of_kind(rows, Kind.PAYLOAD))
        self._rows += rows_of_kind(rows, Kind.SECTION).tolist()
        found = [
            Section(
                self._entries[name][1],
                start,
                end,
                span,
                parent,
                root,
                flags,
                self._payloads.ready.get(span, {}),
            )
            for start, end, span, parent, root, _, name, flags, _ in self._rows
        ]
        return [section for section in found if not names or section.name in names]

    def counted(self, metric: str) -> float:
        """The value of one of the package's own counters."""
        self._entries |= self._reader.new_entries()
        return sum(
            float(cell[1:2].view(np.float64)[0])
            for cell in self._reader.cells()
            if self._entries[int(cell[0])][2] == metric
        )

    @property
    def windows(self) -> list[Window]:
        """The windows in the run's folder, by number."""
        found = [read_window(path) for path in self.folder.glob("*.window.json")]
        return sorted(found, key=lambda window: window.number)

    def events(self, window: Window) -> list[dict[str, Any]]:
        """What the trace of a window holds; fails where it is no whole JSON."""
        return json.loads((self.folder / window.trace).read_text())["traceEvents"]

    def word(self, word: Word) -> int:
        return self._reader.word(word)


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Trained]]:
    """Starts a run without an agent; an exception inside the recorder fails the test."""
    for variable in [v for v in os.environ if v.startswith(("OTEL_", "RANK", "WORLD_", "SLURM"))]:
        monkeypatch.delenv(variable)
    made: list[Trained] = []

    def begin(profile: str = "", **settings: Any) -> Trained:
        given = {"dir": tmp_path / "runs", "agent": "none", "console": False, "profile": profile}
        made.append(Trained(om.start("test", **given | settings)))
        return made[-1]

    faults._said.clear()
    faults._Faults.next_log_ns = 0
    yield begin
    om.stop()
    for trained in made:
        with contextlib.suppress(OSError):
            os.unlink(trained.recorder.journal.path)
            os.rmdir(os.path.dirname(trained.recorder.journal.path))
        assert not trained.word(Word.INTERNAL_ERRORS), "the recorder failed inside: see the log"


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What was logged as a warning so far."""
    caplog.set_level("WARNING", "otel_mlperf")
    return lambda: [record.getMessage() for record in caplog.records]
