"""Destination that writes points to a Weights & Biases file, each point once.

Each host has one file, for all its agents and processes, so that ``wandb sync`` can upload the file
repeatedly. The size of the complete part is stored after each batch. The end record follows the
complete part, and is truncated if the run continues. W&B reads nothing after an end record. If the
agent creates a page of the run (a separate file), the end record is therefore written after the
page.
"""

from __future__ import annotations

import json
import struct
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import msgspec

from otel_mlperf.agent.delivery.appended_file import write_at
from otel_mlperf.agent.delivery.destination import Delivered, Destination, TryLater
from otel_mlperf.agent.delivery.tracker_curves import curve_of, rows_of
from otel_mlperf.agent.delivery.wandb_upload import Upload
from otel_mlperf.agent.derivation.scalars import OUTCOMES
from otel_mlperf.errors import StoreError
from otel_mlperf.ids import safe_name
from otel_mlperf.run_files.run_file import read_run_file
from otel_mlperf.settings.tracker_list import OFFLINE, WANDB, WANDB_MODE
from otel_mlperf.whole_file import make_folder, read_regular, write_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from otel_mlperf.agent.delivery.destination import Batch, DestinationContext, Signal, Verdict
    from otel_mlperf.agent.delivery.tracker_curves import Named
    from otel_mlperf.run_files.run_file import RunFile

_EXIT_CODES: Final = {"finished": 0, "failed": 1, "interrupted": 130, "killed": 137}
"""Exit codes as in a shell. W&B only distinguishes 0 from other codes."""
PAGE: Final = "files", "report.html"
"""Path relative to the W&B file's folder, where W&B's client expects files of a run."""
_SYNCED: Final = ".synced"
"""Suffix of the marker file next to an uploaded file, which makes ``wandb sync`` skip it."""
STEP: Final = "step"
"""Metric used as x-axis of all curves, because W&B's own axis counts rows and only grows."""
_FILE_HEADER: Final = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
_BLOCK: Final = 1 << 15
_PIECE: Final = struct.Struct("<IHB")
"""Header of each piece: checksum of kind and content, length, kind."""
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


class Written(msgspec.Struct):
    """Content of the state file: size and content of the complete part of the W&B file."""

    batch: int = 0
    size: int = 0
    rows: int = 0
    about: int = 0
    """Checksum of the run's facts (``run.json``) that were last written to the W&B file."""
    ended: dict[int, tuple[int, int]] = {}
    """Restart and outcome index of the process that ended last, by rank."""


class WandbDestination(Destination):
    """Destination for the W&B file of one host in a run folder."""

    name = WANDB

    def __init__(self, site: DestinationContext) -> None:
        self._site = site
        self.signals = ("scalars", "reports") if site.options.tracker_report else ("scalars",)
        self._noted = site.run_folder / "agent" / site.host / f"{WANDB}.json"
        self._records = WandbRecords()
        self._upload = self._uploaded()
        self._curves: set[str] = set()
        """Curves whose x-axis is declared in the file."""
        self._has_page = False
        """Whether the page was written since a process of the run was last running."""
        self._file_lock = threading.Lock()
        """Held while the file is written, because points and page are delivered by different
        threads."""

    def accept(self, batch: Batch) -> Verdict:
        """Append points, and the end record if all ranks have ended; or write the run's page."""
        try:
            with self._file_lock:
                facts = read_run_file(self._site.run_folder)
                if batch.signal == "reports":
                    self._keep_page(batch.report, facts)
                elif batch.number > (written := self._load()).batch:
                    self._append(batch, written, facts)
        except OSError as error:
            return TryLater(f"writing {error.filename or self._noted}: {error.strerror}")
        except StoreError as error:
            return TryLater(f"reading the run folder: {error}")
        return Delivered()

    def close(self, signal: Signal) -> None:
        """Write the end record if it still waits for the page; let the upload process finish."""
        if signal == "reports":
            return
        with self._file_lock:
            written = self._load()
            facts = read_run_file(self._site.run_folder)
            if written.size and self._awaits_page() and _size(self._place(facts)) == written.size:
                self._finish(written, facts)
            if self._upload is not None:
                self._upload.leave()

    def _uploaded(self) -> Upload | None:
        options = self._site.options
        if options.environ.get(WANDB_MODE, "").strip() == OFFLINE:
            return None
        return Upload(options.environ, self._noted.with_name("wandb.log"), options.drain_timeout_s)

    def _load(self) -> Written:
        try:
            return msgspec.json.decode(read_regular(self._noted), type=Written)
        except FileNotFoundError:
            return Written()

    def _append(self, batch: Batch, written: Written, facts: RunFile) -> None:
        run_id, path = self._run_id(facts), self._place(facts)
        size = _size(path)
        had_end = size > written.size
        if size < written.size:  # the file was removed: start a new one
            written.size = 0
        if not written.size:
            self._curves.clear()
        records = self._about(run_id, written, facts)
        named = [
            (curve_of(scalar, batch, is_alone=facts.world_size == 1), scalar)
            for scalar in batch.scalars
        ]
        new = [
            name for name in dict.fromkeys(name for name, _ in named) if name not in self._curves
        ]
        records += map(self._records.curve, new)
        points, written.rows = self._records.points(named, facts, written.rows)
        body = framed(written.size, records + points)
        self._note_ends(batch, written)
        ending = [] if self._awaits_page() else self._end(path, written)
        end = framed(written.size + len(body), ending)
        before, written.size = written.size, written.size + len(body)
        write_at(path, before, body + end)
        # Must be written after the file: a crash in between leaves the old size, and the batch is
        # appended again.
        written.batch = batch.number
        write_whole(self._noted, msgspec.json.encode(written), is_durable=True)
        self._curves.update(new)
        self._has_grown(path, has_ended=bool(end), is_anew=had_end)

    def _keep_page(self, page: bytes, facts: RunFile) -> None:
        path = self._place(facts)
        place = path.parent.joinpath(*PAGE)
        make_folder(place.parent)
        write_whole(place, page, is_durable=True)
        self._has_page = True
        self._finish(self._load(), facts)

    def _finish(self, written: Written, facts: RunFile) -> None:
        path = self._place(facts)
        ending = self._end(path, written)
        if ending and written.size:
            had_end = _size(path) > written.size
            write_at(path, written.size, framed(written.size, ending))
            self._has_grown(path, has_ended=True, is_anew=had_end)

    def _has_grown(self, path: Path, *, has_ended: bool, is_anew: bool) -> None:
        with suppress(OSError):
            path.with_name(path.name + _SYNCED).unlink()
        if self._upload is not None:
            self._upload.go_on(path, has_ended=has_ended, is_anew=is_anew)

    def _awaits_page(self) -> bool:
        ranks = self._site.ranks()
        if any(ranks.values()):
            self._has_page = False
        return "reports" in self.signals and 0 in ranks and not self._has_page

    def _about(self, run_id: str, written: Written, facts: RunFile) -> list[bytes]:
        about = crc32(msgspec.json.encode(facts))
        if written.size and written.about == about:
            return []
        written.about = about
        environ = self._site.options.environ
        # One W&B run per host: W&B accepts the data of a run from a single writer only.
        group = environ.get("WANDB_RUN_GROUP") or (facts.id if facts.world_size > 1 else "")
        where = {
            "entity": environ.get("WANDB_ENTITY", ""),
            "project": environ.get("WANDB_PROJECT", ""),
            "run_group": group,
        }
        return self._records.about(run_id, where, facts)

    def _note_ends(self, batch: Batch, written: Written) -> None:
        for scalar in batch.scalars:
            if scalar.kind == "outcome" and scalar.rank is not None:
                written.ended[scalar.rank] = scalar.restart, OUTCOMES.index(scalar.text)

    def _end(self, path: Path, written: Written) -> list[bytes]:
        if not written.ended or any(self._site.ranks().values()):
            return []
        _, worst = max(written.ended.values())
        end = self._records.end(_EXIT_CODES[OUTCOMES[worst]])
        has_page = path.parent.joinpath(*PAGE).exists()
        return [self._records.file(PAGE[-1]), end] if has_page else [end]

    def _run_id(self, facts: RunFile) -> str:
        """Return the W&B run id: the run's id, with the host appended on all but the first host."""
        is_first = self._site.host == safe_name(facts.host)
        return safe_name(facts.id if is_first else f"{facts.id}-{self._site.host}", limit=128)

    def _place(self, facts: RunFile) -> Path:
        run_id = self._run_id(facts)
        began = time.strftime("%Y%m%d_%H%M%S", time.gmtime(facts.started_ns // 10**9))
        folder = self._site.run_folder / WANDB / f"offline-run-{began}-{run_id}"
        return folder / f"run-{run_id}.wandb"


class WandbRecords:
    """Encoder of W&B records. Most methods return the bytes of one record.

    Raises:
        ImportError: W&B is not installed.
    """

    def __init__(self) -> None:
        from wandb.proto.wandb_internal_pb2 import Record

        self._record = Record

    def about(self, run_id: str, where: Mapping[str, str], facts: RunFile) -> list[bytes]:
        """Encode the facts of the run, written at the start of a file and after each change.

        ``where`` contains the W&B entity, project and group, each of which can be empty.
        """
        run = {
            "run_id": run_id,
            "display_name": facts.name,
            "tags": facts.tags,
            "start_time": {"seconds": facts.started_ns // 10**9, "nanos": facts.started_ns % 10**9},
            **where,
        }
        update = [{"key": key, "value_json": json.dumps(facts.params[key])} for key in facts.params]
        axis = {"name": STEP, "options": {"defined": True}}
        return [
            self._encoded(run=run),
            self._encoded(config={"update": update}),
            self._encoded(metric=axis),
        ]

    def points(self, named: Sequence[Named], facts: RunFile, rows: int) -> tuple[list[bytes], int]:
        """Encode points after ``rows`` existing rows; return records and new number of rows."""
        found: list[bytes] = []
        for number, time_ns, values in rows_of(named):
            of_row = {
                **values,
                STEP: number,
                "_step": rows,
                "_timestamp": time_ns / 1e9,
                "_runtime": (time_ns - facts.started_ns) / 1e9,
            }
            found.append(self._encoded(history={"item": _items(of_row), "step": {"num": rows}}))
            rows += 1
        latest: dict[str, Any] = {}
        for name, scalar in named:
            latest[name] = scalar.value
            if scalar.text:
                latest[f"{name}/text"] = scalar.text
        found.append(self._encoded(summary={"update": _items(latest)}))
        return found, rows

    def curve(self, name: str) -> bytes:
        """Encode the declaration that the curve ``name`` has the step as x-axis."""
        # Escape dots, which would address a nested value.
        escaped = name.replace(".", "\\.")
        options = {"step_sync": True, "defined": True}
        return self._encoded(metric={"name": escaped, "step_metric": STEP, "options": options})

    def file(self, name: str) -> bytes:
        """Encode the request to upload a file of the run in its current state."""
        return self._encoded(files={"files": [{"path": name, "policy": "NOW"}]})

    def end(self, exit_code: int) -> bytes:
        """Encode the end record. Readers ignore everything after it."""
        return self._encoded(exit={"exit_code": exit_code})

    def _encoded(self, **content: Any) -> bytes:
        return bytes(self._record(**content).SerializeToString(deterministic=True))


def _items(values: Mapping[str, Any]) -> list[dict[str, str]]:
    return [{"key": key, "value_json": json.dumps(value)} for key, value in values.items()]


def framed(at: int, records: Iterable[bytes]) -> bytes:
    """Return ``records`` in W&B's file format for offset ``at``; at 0, with the file header."""
    body = bytearray(b"" if at else _FILE_HEADER)
    for record in records:
        done, started = 0, False
        while not started or done < len(record):
            room = _BLOCK - (at + len(body)) % _BLOCK - _PIECE.size
            if room < 0:  # too little room for a header: pad the block
                body += bytes(room + _PIECE.size)
                continue
            piece = record[done : done + room]
            done += len(piece)
            is_last = done == len(record)
            kind = (_LAST if started else _WHOLE) if is_last else (_MIDDLE if started else _FIRST)
            body += _PIECE.pack(crc32(piece, crc32(bytes((kind,)))), len(piece), kind) + piece
            started = True
    return bytes(body)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def make(site: DestinationContext) -> WandbDestination:
    """Create the destination for the W&B file in the run folder."""
    return WandbDestination(site)
