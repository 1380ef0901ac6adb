"""JSON lines that processes append to a run folder, and the reader of all of them.

The files are ``<part>/<rank>-<restart>-<pid>.jsonl``. The process itself appends each line by one
write. Each line is therefore whole whatever ends the process next; readers skip lines that are not.
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
    """Interface of a line's content, which identifies its process."""

    @property
    def rank(self) -> int:
        """Return the process's rank."""

    @property
    def restart(self) -> int:
        """Return how often the rank was started before."""


def append_process_line(run_folder: str, part: str, pid: int, said: OfProcess) -> None:
    """Append one line.

    Raises:
        OSError: the place refuses.
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
    """Yield all lines written so far, by process."""
    decoder = msgspec.json.Decoder(kind)
    for path in sorted((run_folder / part).glob("*.jsonl")):
        try:
            lines = read_regular(path).splitlines()
        except OSError:  # not of ours
            continue
        for line in lines:
            with contextlib.suppress(msgspec.DecodeError):  # cut: the disk was full
                yield decoder.decode(line)
