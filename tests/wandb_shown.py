"""Reader of a Weights & Biases file, and of its expected content by the run's own tables."""

from __future__ import annotations

import json
import struct
import zlib
from collections import Counter
from typing import TYPE_CHECKING, Any

from tracked_points import in_tables

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

WITHOUT_STEP = ("readings/", "run/", "result/")
_BLOCK = 32_768


def the_file(run_folder: Path) -> Path:
    """The one file of a run."""
    (file,) = run_folder.glob("wandb/*/*.wandb")
    return file


def contents(raw: bytes) -> Iterator[bytes]:
    """The records in a file's bytes, each checked; as LevelDB describes its log."""
    assert raw[:7] == b":W&B\xe1\xbe\0"
    at, record, is_begun = 7, b"", False
    while at < len(raw):
        if (left := _BLOCK - at % _BLOCK) < 7:
            assert not any(raw[at : at + left])
            at += left
            continue
        check, length, kind = struct.unpack_from("<IHB", raw, at)
        piece = raw[at + 7 : at + 7 + length]
        assert check == zlib.crc32(piece, zlib.crc32(bytes([kind])))
        assert is_begun == (kind in (3, 4))
        at, record, is_begun = at + 7 + length, record + piece, kind in (2, 3)
        if not is_begun:
            yield record
            record = b""
    assert not is_begun


def records(file: Path) -> list[Any]:
    """The same as W&B's own library reads each of them."""
    from wandb.proto.wandb_internal_pb2 import Record

    return [Record.FromString(content) for content in contents(file.read_bytes())]


def of_kind(file: Path, kind: str) -> list[Any]:
    """Records of one kind, in order."""
    return [getattr(record, kind) for record in records(file) if record.HasField(kind)]


def rows(file: Path) -> list[dict[str, Any]]:
    """Rows of the history."""
    return [items(history.item) for history in of_kind(file, "history")]


def summary(file: Path) -> dict[str, Any]:
    """What its last values come to."""
    return {k: v for update in of_kind(file, "summary") for k, v in items(update.update).items()}


def items(listed: Iterable[Any]) -> dict[str, Any]:
    return {item.key: json.loads(item.value_json) for item in listed}


def points(history: Iterable[dict[str, Any]]) -> Counter[tuple]:
    """Curve, value, time and step of each point; of what is of no step without it.

    W&B's own counter must grow by one with each row.
    """
    found: Counter[tuple] = Counter()
    for n, row in enumerate(history):
        step, time_s = row["step"], row["_timestamp"]
        assert row["_step"] == n
        for name in row.keys() - {"step", "_step", "_timestamp", "_runtime"}:
            number = None if name.startswith(WITHOUT_STEP) else step
            found[name, row[name], time_s, number] += 1
    return found


def expected(run_folder: Path, host: str = "") -> Counter[tuple]:
    """The same by the run's tables; with a ``host`` each curve ends with whose it is."""
    found: Counter[tuple] = Counter()
    for (rank, name, value, time_ns, number), count in in_tables(run_folder).items():
        whose = f"/{host if rank is None else f'rank{rank}'}" if host else ""
        found[name + whose, value, time_ns / 1e9, number] += count
    return found


def of_the_program(found: Counter[tuple]) -> Counter[tuple]:
    """Without findings, which depend on who else uses the machine."""
    return Counter({p: count for p, count in found.items() if not p[0].startswith("findings/")})
