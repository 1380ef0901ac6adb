"""What had grown in a process between two points, and where does a run folder keep it?

``growth/<rank>-<restart>-<pid>.jsonl``: a line for each time that a program asked, appended by the
process itself. As with profiled calls, each line is there as a whole whatever ends the process
next; readers pass over what is none.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from otel_mlperf.process_lines import append_process_line, read_process_lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FOLDER: Final = "growth"
"""Of a run folder."""
What = Literal["type", "tensor", "site"]


class GrowthRow(msgspec.Struct, frozen=True, kw_only=True):
    """Objects of one type, tensors of one kind, or what one line allocated."""

    what: What
    """``type``: objects by type; ``tensor``: memory of tensors; ``site``: lines that allocated."""
    name: str = ""
    """Of the type; of tensors their numbers, shape and device."""
    file: str = ""
    """Of a line."""
    line: int = 0
    count: int
    """So many more: objects, blocks of memory of tensors, or blocks that the line allocated."""
    bytes: int
    """So much more."""
    now_count: int
    """So many there were at the second point."""
    now_bytes: int


class MemoryGrowth(msgspec.Struct, frozen=True, kw_only=True):
    """What a process had more of at the second of two points; printed it is a table."""

    rank: int = 0
    restart: int = 0
    begin_ns: int = 0
    """Unix time of the first point."""
    end_ns: int = 0
    """Of the second."""
    steps: int = 0
    """Training steps between the two."""
    count: int = 0
    """More objects; where there are fewer, below zero, like those below."""
    bytes: int = 0
    """Their own sizes, without what they refer to."""
    tensor_bytes: int = 0
    """Memory of PyTorch's tensors, each piece once, on all devices."""
    resident_bytes: int | None = None
    """Of the process, in RAM."""
    cuda_bytes: int | None = None
    """What PyTorch's allocator had given out on the current device."""
    rows: list[GrowthRow] = []
    """What has grown, by ``what``, in each the most bytes first."""
    more: int = 0
    """Rows beyond the 50 largest of each."""
    missing: list[str] = []
    """Sentences: what is not in it, and why."""

    def __str__(self) -> str:
        return self._drawn("growth_text")

    def _repr_html_(self) -> str:
        return self._drawn("growth_html")

    def _drawn(self, how: str) -> str:
        # By name: what draws lies above.
        table: Any = importlib.import_module("otel_mlperf.report.growth_table")
        text: str = getattr(table, how)(self)
        return text


def append_growth(run_folder: str, pid: int, growth: MemoryGrowth) -> None:
    """Writes one.

    Raises:
        OSError: the place refuses.
    """
    append_process_line(run_folder, FOLDER, pid, growth)


def read_growths(run_folder: Path) -> Iterator[MemoryGrowth]:
    """All that were written so far, by process."""
    return read_process_lines(run_folder, FOLDER, MemoryGrowth)
