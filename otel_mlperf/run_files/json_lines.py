"""Files of JSON lines in a run folder, one file per process, and their reader.

The files are ``<part>/<rank>-<restart>-<pid>.jsonl``. Each process appends a line by a single
write, so that the line is complete even if the process is killed next. Readers skip incomplete
lines.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from otel_mlperf.whole_file import make_folder, open_private, read_regular

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

T = TypeVar("T")


class OfProcess(Protocol):
    """Interface of a record, which identifies the process that writes the record."""

    @property
    def rank(self) -> int:
        """Return the rank of the process."""

    @property
    def restart(self) -> int:
        """Return how often the rank was started before."""


def append_process_line(run_folder: str, part: str, pid: int, said: OfProcess) -> None:
    """Append the record ``said`` as one line to the file of process ``pid`` in folder ``part``.

    Raises:
        OSError: the file cannot be written.
    """
    folder = os.path.join(run_folder, part)
    make_folder(folder)
    path = os.path.join(folder, f"{said.rank}-{said.restart}-{pid}.jsonl")
    fd = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(fd, msgspec.json.encode(said) + b"\n")
    finally:
        os.close(fd)


def read_process_lines(run_folder: Path, part: str, kind: type[T]) -> Iterator[T]:
    """Yield the records of type ``kind`` in all files of folder ``part``, grouped by process."""
    decoder = msgspec.json.Decoder(kind)
    for path in sorted((run_folder / part).glob("*.jsonl")):
        try:
            lines = read_regular(path).splitlines()
        except OSError:  # not a file of this package
            continue
        for line in lines:
            with contextlib.suppress(msgspec.DecodeError):  # incomplete: the disk was full
                yield decoder.decode(line)
