"""Format of a run's ``.wandb`` file: its records, and their framing in the file."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from otel_mlperf.agent.delivery.tracker_rows import rows_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from otel_mlperf.agent.delivery.tracker_rows import Named
    from otel_mlperf.run_files.run_file import RunFile


STEP: Final = "step"
"""The axis of all curves: W&B's own axis counts rows and may only grow."""


class WandbRecords:
    """Encoder of records; each result is the bytes of one record.

    Raises:
        ImportError: W&B is not installed.
    """

    def __init__(self) -> None:
        from wandb.proto.wandb_internal_pb2 import Record

        self._record = Record

    def about(self, run_id: str, where: Mapping[str, str], facts: RunFile) -> list[bytes]:
        """Encode the run's facts: first in a file, and again when the facts have changed.

        ``where`` has entity, project and group, as far as they are known.
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
        """Encode a batch's points; return them and the new row count, given the old ``rows``."""
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
        """Encode the axis of a curve."""
        # A dot would address a nested value.
        escaped = name.replace(".", "\\.")
        options = {"step_sync": True, "defined": True}
        return self._encoded(metric={"name": escaped, "step_metric": STEP, "options": options})

    def file(self, name: str) -> bytes:
        """Encode that a file of the run is to be uploaded in its current state."""
        return self._encoded(files={"files": [{"path": name, "policy": "NOW"}]})

    def end(self, exit_code: int) -> bytes:
        """Encode that all processes have ended. Readers ignore everything behind this record."""
        return self._encoded(exit={"exit_code": exit_code})

    def _encoded(self, **content: Any) -> bytes:
        return bytes(self._record(**content).SerializeToString(deterministic=True))


def _items(values: Mapping[str, Any]) -> list[dict[str, str]]:
    """Encode values as W&B's JSON, which has ``NaN`` and ``Infinity`` as Python's has."""
    return [{"key": key, "value_json": json.dumps(value)} for key, value in values.items()]


_FILE_HEADER: Final = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
_BLOCK: Final = 1 << 15
_PIECE: Final = struct.Struct("<IHB")
"""Header of each piece: the checksum of its kind and content, its length, its kind."""
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def framed(at: int, records: Iterable[bytes]) -> bytes:
    """Return the bytes to write at ``at``: the end of a record, or 0, where the file starts."""
    body = bytearray(b"" if at else _FILE_HEADER)
    for record in records:
        done, begun = 0, False
        while not begun or done < len(record):
            room = _BLOCK - (at + len(body)) % _BLOCK - _PIECE.size
            if room < 0:  # the block's last bytes, too few
                body += bytes(room + _PIECE.size)
                continue
            piece = record[done : done + room]
            done += len(piece)
            is_last = done == len(record)
            kind = (_LAST if begun else _WHOLE) if is_last else (_MIDDLE if begun else _FIRST)
            body += _PIECE.pack(crc32(piece, crc32(bytes((kind,)))), len(piece), kind) + piece
            begun = True
    return bytes(body)
