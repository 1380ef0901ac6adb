"""Memory growth of a process between two points: its record, its file in the run folder, its text.

``growth/<rank>-<restart>-<pid>.jsonl`` has a line for each request of the program, appended by the
process itself. As with profiled calls, each line is stored whole whatever ends the process next;
readers skip incomplete lines.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from otel_mlperf.quantities import duration, plural, signed_size
from otel_mlperf.run_files.process_lines import append_process_line, read_process_lines
from otel_mlperf.terminal_lines import WIDTH, Line, broken, place_text, short, text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path


FOLDER: Final = "growth"
"""Folder in a run folder."""
What = Literal["type", "tensor", "site"]


class GrowthRow(msgspec.Struct, frozen=True, kw_only=True):
    """Growth of objects of one type, tensors of one kind, or allocations of one line."""

    what: What
    """``type``: objects by type; ``tensor``: memory of tensors; ``site``: lines that allocated."""
    name: str = ""
    """Name of the type; for tensors their dtype, shape and device."""
    file: str = ""
    """File of a line."""
    line: int = 0
    count: int
    """Increase of the number of objects, memory blocks of tensors, or blocks allocated by the line.
"""
    bytes: int
    """Increase in bytes."""
    now_count: int
    """Number at the second point."""
    now_bytes: int


class MemoryGrowth(msgspec.Struct, frozen=True, kw_only=True):
    """Memory growth of a process between two points; printed it is a table."""

    rank: int = 0
    restart: int = 0
    begin_ns: int = 0
    """Unix time of the first point."""
    end_ns: int = 0
    """Unix time of the second point."""
    steps: int = 0
    """Training steps between the two."""
    count: int = 0
    """Increase of the number of objects; negative if there are fewer, like the fields below."""
    bytes: int = 0
    """Increase of the objects' own sizes, without what they refer to."""
    tensor_bytes: int = 0
    """Increase of the memory of PyTorch's tensors, each piece once, on all devices."""
    resident_bytes: int | None = None
    """Increase of the resident memory of the process."""
    cuda_bytes: int | None = None
    """Increase of the memory that PyTorch's allocator had allocated on the current device."""
    rows: list[GrowthRow] = []
    """Rows of what has grown, by ``what``, each sorted by bytes in descending order."""
    more: int = 0
    """Number of rows beyond the 50 largest of each."""
    missing: list[str] = []
    """Sentences about what is missing, and why."""

    def __str__(self) -> str:
        return growth_text(self)

    def _repr_html_(self) -> str:
        return growth_html(self)


def append_growth(run_folder: str, pid: int, growth: MemoryGrowth) -> None:
    """Append one record.

    Raises:
        OSError: the place refuses.
    """
    append_process_line(run_folder, FOLDER, pid, growth)


def read_growths(run_folder: Path) -> Iterator[MemoryGrowth]:
    """Yield all records written so far, by process."""
    return read_process_lines(run_folder, FOLDER, MemoryGrowth)


TOP: Final = 10
_SHOWN: Final = 5
"""Maximum number of records shown, the last ones."""
_COLUMN: Final = 10
_HEADS: Final[dict[What, tuple[str, ...]]] = {
    "tensor": ("growth", "added", "current", "tensors"),
    "type": ("growth", "added", "current", "objects"),
    "site": ("growth", "blocks", "current", "allocated by"),
}


KINDS: Final = tuple(_HEADS)
"""Kinds of rows, in the order in which they are shown."""


def growth_text(growth: MemoryGrowth) -> str:
    """Format growth as ``print`` shows it."""
    return text(growth_lines(growth), color=False, unicode=True).removesuffix("\n")


def growth_html(growth: MemoryGrowth) -> str:
    """Format growth as a notebook shows it; texts are escaped."""
    return f"<pre>{escape(growth_text(growth))}</pre>"


def all_growth_lines(growths: Sequence[MemoryGrowth], *, top: int, width: int) -> list[Line]:
    """Format the last records, separated by empty lines."""
    lines: list[Line] = []
    if len(growths) > _SHOWN:
        earlier = plural(len(growths) - _SHOWN, "earlier point")
        lines += [[(f"memory growth at {earlier}: --json", "dim")], []]
    for growth in growths[-_SHOWN:]:
        lines += [*growth_lines(growth, top=top, width=width), []]
    return lines[:-1]


def growth_lines(growth: MemoryGrowth, *, top: int = TOP, width: int = WIDTH) -> list[Line]:
    """Format a summary line, then tables of tensors, types and lines."""
    lines: list[Line] = [[(line, "bold")] for line in broken(head_text(growth), width)]
    lines += [[(f"  missing: {why}", "yellow")] for why in growth.missing]
    shown = 0
    for what in KINDS:
        rows = rows_of(growth, what)
        shown += len(rows[:top])
        lines += _table(what, rows[:top], width) if rows else []
    if (more := len(growth.rows) + growth.more - shown) > 0:
        lines.append([(f"  {plural(more, 'more row')}: --top, or --json", "dim")])
    return lines


def head_text(growth: MemoryGrowth) -> str:
    """Format the totals."""
    told = [("process", growth.resident_bytes), ("CUDA", growth.cuda_bytes)]
    told += [("tensors", growth.tensor_bytes), ("objects", growth.bytes)]
    grown = ", ".join(f"{name} {signed_size(many)}" for name, many in told if many is not None)
    steps = f", {plural(growth.steps, 'step')}" if growth.steps else ""
    rank = f" of rank {growth.rank}" if growth.rank else ""
    return f"memory growth{rank} in {duration(growth.end_ns - growth.begin_ns)}{steps}: {grown}"


def titles(what: What) -> tuple[str, ...]:
    """Return the titles of the columns."""
    return _HEADS[what]


def rows_of(growth: MemoryGrowth, what: What) -> list[GrowthRow]:
    """Return the rows of a kind, sorted by bytes in descending order."""
    return [row for row in growth.rows if row.what == what]


def numbers(row: GrowthRow) -> tuple[str, str, str]:
    """Return the texts of a row's numeric columns."""
    return signed_size(row.bytes), f"{row.count:+,}", f"{row.now_count:,}"


def _table(what: What, rows: Iterable[GrowthRow], width: int) -> list[Line]:
    *heads, last = titles(what)
    lines: list[Line] = [[("".join(f"{head:>{_COLUMN}}" for head in heads) + f"  {last}", "dim")]]
    for row in rows:
        cells = "".join(f"{cell:>{_COLUMN}}" for cell in numbers(row))
        lines.append([(f"{cells}  {_what(row, width - len(cells) - 2)}", "")])
    return lines


def _what(row: GrowthRow, room: int) -> str:
    return place_text(row.file, row.line, room) if row.file else short(row.name, room)
