"""Shared by tests of GPU time: a run without an agent on simulated devices."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from fake_cuda import FakeGpu

import otel_mlperf as om
from otel_mlperf import names
from otel_mlperf.journal.journal_reader import JournalReader
from otel_mlperf.journal.layout import Flag, Kind, Word
from otel_mlperf.journal.ring_scan import PayloadParts, rows_of_kind
from otel_mlperf.pytorch.gpu_time.device_clock import MAX_EVENTS
from otel_mlperf.pytorch.gpu_time.gpu_stamps import GpuStamps
from otel_mlperf.pytorch.gpu_time.stamp_switch import Switch
from otel_mlperf.recorder.core import faults
from otel_mlperf.settings.config import LEVELS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_mlperf.journal.contents import DeviceTimes


@dataclass
class Told:
    """A section, and when its stamps were passed by the device's clock."""

    name: str
    span: int
    root: int
    device: int
    is_same_stream: bool
    host_begin: int
    host_end: int
    begin: int
    end: int
    low: int
    high: int
    is_step: bool
    is_mixed: bool

    @property
    def ns(self) -> int:
        return self.end - self.begin


class GpuRun:
    """A run whose sections have stamps on simulated devices from now on."""

    def __init__(self, run: om.Run, gpu: FakeGpu, most: int = MAX_EVENTS) -> None:
        self.run, self.gpu = run, gpu
        self.recorder = run._recorder
        self.switch = Switch(
            self.recorder,
            lambda: gpu if gpu.initialized else None,
            lambda recorder, cuda: GpuStamps(recorder, cuda, gpu.clock, most),
        )
        self.recorder.stepping.now_and_then.append(self.switch.look)
        self.recorder.registry.at_new_name.append(self.switch.look)
        run.before_end.append(self.switch.finish)
        self._reader = JournalReader(self.recorder.journal.path, self.recorder.journal.buffer)
        self._entries: dict[int, Any] = {}
        self._parts = PayloadParts()
        self._rows: list[Any] = []

    def rows(self, kind: Kind) -> list[Any]:
        """Rows of a kind so far."""
        rows = self._reader.take()
        self._entries |= self._reader.new_entries()
        self._parts.feed(rows_of_kind(rows, Kind.PAYLOAD))
        self._rows += rows.tolist()
        return [row for row in self._rows if row[7] & 15 == kind]

    @property
    def told(self) -> list[Told]:
        """What payloads of their own said so far."""
        found = []
        for said in self.device_times:
            host, device = said.host_ns, said.device_ns
            for i, of in enumerate(said.sections):
                found.append(
                    Told(
                        self._entries[of.entry][1], of.span, said.root, said.device,
                        of.is_same_stream, host + of.host_begin, host + of.host_end,
                        device + of.begin, device + of.end, said.low, said.high,
                        said.is_step and not i, said.is_mixed,
                    )
                )  # fmt: skip
        return found

    @property
    def device_times(self) -> list[DeviceTimes]:
        """The same as it was told."""
        self.rows(Kind.SECTION)
        contents: list[DeviceTimes | None] = [of.get("d") for of in self._parts.ready.values()]
        return [told for told in contents if told is not None]

    def entries(self, *names_: str) -> list[int]:
        """Numbers of the names of sections."""
        return [i for i, content in self._entries.items() if content[1] in names_]

    def spans(self, name: str) -> list[int]:
        """Ids of the sections of a name that ended."""
        rows = self.rows(Kind.SECTION)
        return [row[2] for row in rows if self._entries[row[6]][1] == name]

    def is_flagged(self, span: int) -> bool:
        """Whether a section's row says that more will be told."""
        (row,) = (row for row in self.rows(Kind.SECTION) if row[2] == span)
        return bool(row[7] & Flag.ON_DEVICE)

    @property
    def missed(self) -> dict[str, float]:
        """Sections without GPU time, by reason."""
        self.rows(Kind.SECTION)
        return {
            content[4][0][1]: float(cell.view("f8")[1])
            for cell in self._reader.cells()
            if (content := self._entries[int(cell[0])])[2] == names.GPU_TIME_MISSED.name
        }

    @property
    def errors(self) -> int:
        return self._reader.word(Word.INTERNAL_ERRORS)


@pytest.fixture
def start_gpu(tmp_path) -> Iterator[Any]:
    """Starts a run on simulated devices."""
    made: list[GpuRun] = []
    faults._said.clear()

    def start(gpu: FakeGpu | None = None, most: int = MAX_EVENTS, **settings: Any) -> GpuRun:
        quiet = {"dir": tmp_path, "agent": "none", "console": False, "readings": "none"}
        quiet["gpu_time_categories"] = LEVELS["detailed"]["gpu_time_categories"]
        made.append(GpuRun(om.start("x", **quiet | settings), gpu or FakeGpu(), most))
        return made[-1]

    yield start
    om.stop()
    for run in made:
        with contextlib.suppress(OSError):
            os.unlink(run.recorder.journal.path)
            os.rmdir(os.path.dirname(run.recorder.journal.path))
        assert not run.errors, "the recorder failed inside: see the log"


@pytest.fixture
def gpu_run(start_gpu) -> GpuRun:
    """An active run on one simulated device."""
    return start_gpu()
