"""Destination that writes points to TensorBoard event files, each point once.

Each rank has its own folder, so that TensorBoard draws the ranks as lines of one chart. The size of
the complete part of each file is stored after each batch. If a killed agent or a full disk leaves a
partial batch after that part, the partial batch is removed before the batch is written again.
"""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

import msgspec

from otel_mlperf.agent.delivery.appended_file import write_at
from otel_mlperf.agent.delivery.destination import Delivered, Destination, TryLater
from otel_mlperf.agent.delivery.tracker_curves import rank_of, tag_of
from otel_mlperf.ids import safe_name
from otel_mlperf.settings.tracker_list import TENSORBOARD
from otel_mlperf.whole_file import read_regular, write_whole

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from otel_mlperf.agent.delivery.destination import Batch, DestinationContext, Verdict
    from otel_mlperf.agent.model.scalar_item import ScalarItem

_VERSION: Final = "brain.Event:2"


class Written(msgspec.Struct):
    """Content of the state file: number of the last batch, size of each file's complete part."""

    batch: int = 0
    files: dict[str, int] = {}
    """Size in bytes by path, relative to the folder of the event files."""


class TensorBoardDestination(Destination):
    """Destination for the event files of one host in a run folder."""

    name = TENSORBOARD
    signals = ("scalars",)

    def __init__(self, folder: Path, host: str, noted: Path) -> None:
        """``noted`` is the path of the state file, which contains ``Written``."""
        self._folder, self._host, self._noted = folder, host, noted
        self._encode = _encoder()

    def accept(self, batch: Batch) -> Verdict:
        """Append the batch's points to the event file of each rank."""
        try:
            written = self._load()
            if batch.number > written.batch:
                self._append(batch, written)
        except OSError as error:
            return TryLater(f"writing {error.filename or self._folder}: {error.strerror}")
        return Delivered()

    def _load(self) -> Written:
        try:
            return msgspec.json.decode(read_regular(self._noted), type=Written)
        except FileNotFoundError:
            return Written()

    def _append(self, batch: Batch, written: Written) -> None:
        for rank, scalars in _by_rank(batch).items():
            known = (path for path in written.files if path.startswith(f"{rank}/"))
            path = next(known, "") or f"{rank}/{self._file_name(scalars[0])}"
            size = written.files.get(path, 0)
            body = b"".join(map(self._encode, scalars))
            start = b"" if size else self._encode(None)
            written.files[path] = write_at(self._folder / path, size, start + body)
        # Must be written after the files: a crash in between leaves the old sizes, and the batch is
        # appended again.
        written.batch = batch.number
        write_whole(self._noted, msgspec.json.encode(written), is_durable=True)

    def _file_name(self, first: ScalarItem) -> str:
        # The name starts with the time: TensorBoard reads files in name order and never goes back.
        return f"events.out.tfevents.{first.time_ns // 10**9:010d}.{self._host}"


def _by_rank(batch: Batch) -> dict[str, list[ScalarItem]]:
    found: dict[str, list[ScalarItem]] = {}
    for scalar in batch.scalars:
        found.setdefault(safe_name(rank_of(scalar, batch)), []).append(scalar)
    return found


def _encoder() -> Callable[[ScalarItem | None], bytes]:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING
    from tensorboard.plugins.text.metadata import create_summary_metadata
    from tensorboard.summary.writer.record_writer import RecordWriter

    def event(scalar: ScalarItem | None) -> Any:
        if scalar is None:
            return Event(wall_time=0.0, file_version=_VERSION)
        tag = tag_of(scalar)
        values = [Summary.Value(tag=tag, simple_value=scalar.value)]
        if scalar.text:
            text = TensorProto(dtype=DT_STRING, string_val=[scalar.text.encode()])
            about = create_summary_metadata("", "")
            values.append(Summary.Value(tag=f"{tag}/text", tensor=text, metadata=about))
        summary = Summary(value=values)
        return Event(wall_time=scalar.time_ns / 1e9, step=scalar.number, summary=summary)

    def encode(scalar: ScalarItem | None) -> bytes:
        record = BytesIO()
        RecordWriter(record).write(event(scalar).SerializeToString())
        return record.getvalue()

    return encode


def make(site: DestinationContext) -> TensorBoardDestination:
    """Create the destination for the event files in the run folder."""
    noted = site.run_folder / "agent" / site.host / f"{TENSORBOARD}.json"
    return TensorBoardDestination(site.run_folder / TENSORBOARD, site.host, noted)
