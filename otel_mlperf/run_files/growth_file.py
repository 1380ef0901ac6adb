"""Memory growth of a process between two points in time: records, their file and text form.

``growth/<rank>-<restart>-<pid>.jsonl`` contains a line for each measurement that the user's program
requests. The process appends each line by a single write (see ``json_lines``).
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from otel_mlperf.quantities import duration, plural, signed_size
from otel_mlperf.run_files.json_lines import append_process_line, read_process_lines
from otel_mlperf.terminal_lines import WIDTH, Line, broken, place_text, short, text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path


FOLDER: Final = "growth"
"""Name of the folder in a run folder."""
What = Literal["type", "tensor", "site"]


class GrowthRow(msgspec.Struct, frozen=True, kw_only=True):
    """Growth of objects of one type, of tensors of one kind, or of one line's allocations."""

    what: What
    """``type``: objects by type; ``tensor``: memory of tensors; ``site``: allocations by source
    line."""
    name: str = ""
    """Name of the type. For tensors: dtype, shape and device."""
    file: str = ""
    """Source file of a line."""
    line: int = 0
    count: int
    """Increase of the number of objects, of memory blocks of tensors, or of allocated blocks."""
    bytes: int
    """Increase in bytes."""
    now_count: int
    """Number at the second point in time."""
    now_bytes: int


class MemoryGrowth(msgspec.Struct, frozen=True, kw_only=True):
    """Memory growth of a process between two points in time. ``str`` formats it as a table."""

    rank: int = 0
    restart: int = 0
    begin_ns: int = 0
    """Unix time of the first point."""
    end_ns: int = 0
    """Unix time of the second point."""
    steps: int = 0
    """Number of training steps between the two points."""
    count: int = 0
    """Increase of the number of objects. This and the following fields may be negative."""
    bytes: int = 0
    """Increase of the objects' own sizes, without the objects that they reference."""
    tensor_bytes: int = 0
    """Increase of the memory of PyTorch tensors on all devices; shared memory counts once."""
    resident_bytes: int | None = None
    """Increase of the resident memory of the process; None if unknown."""
    cuda_bytes: int | None = None
    """Increase of the memory that PyTorch has allocated on the current device; None if unknown."""
    rows: list[GrowthRow] = []
    """Rows that have grown, grouped by ``what``. Each group is sorted by bytes in descending
    order."""
    more: int = 0
    """Number of rows beyond the 50 largest in each group."""
    missing: list[str] = []
    """Messages about missing values, with the reasons."""

    def __str__(self) -> str:
        return growth_text(self)

    def _repr_html_(self) -> str:
        return growth_html(self)


def append_growth(run_folder: str, pid: int, growth: MemoryGrowth) -> None:
    """Append one record to the file of process ``pid`` in the run folder.

    Raises:
        OSError: the file cannot be written.
    """
    append_process_line(run_folder, FOLDER, pid, growth)


def read_growths(run_folder: Path) -> Iterator[MemoryGrowth]:
    """Yield all records in a run folder that were written so far, grouped by process."""
    return read_process_lines(run_folder, FOLDER, MemoryGrowth)


TOP: Final = 10
_SHOWN: Final = 5
"""Maximum number of records that are shown (the last ones)."""
_COLUMN: Final = 10
_HEADS: Final[dict[What, tuple[str, ...]]] = {
    "tensor": ("growth", "added", "current", "tensors"),
    "type": ("growth", "added", "current", "objects"),
    "site": ("growth", "blocks", "current", "allocated by"),
}


KINDS: Final = tuple(_HEADS)
"""Values of ``what``, in the order in which their tables are shown."""


def growth_text(growth: MemoryGrowth) -> str:
    """Format one record as plain text for ``print``."""
    return text(growth_lines(growth), color=False, unicode=True).removesuffix("\n")


def growth_html(growth: MemoryGrowth) -> str:
    """Format one record as HTML for notebooks."""
    return f"<pre>{escape(growth_text(growth))}</pre>"


def all_growth_lines(growths: Sequence[MemoryGrowth], *, top: int, width: int) -> list[Line]:
    """Format the last five records, separated by empty lines; ``top`` rows in each table."""
    lines: list[Line] = []
    if len(growths) > _SHOWN:
        earlier = plural(len(growths) - _SHOWN, "earlier point")
        lines += [[(f"memory growth at {earlier}: --json", "dim")], []]
    for growth in growths[-_SHOWN:]:
        lines += [*growth_lines(growth, top=top, width=width), []]
    return lines[:-1]


def growth_lines(growth: MemoryGrowth, *, top: int = TOP, width: int = WIDTH) -> list[Line]:
    """Format one record: a summary, then tables of tensors, types and lines (``top`` rows each)."""
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
    """Format the totals of a record as a summary line."""
    totals = [("process", growth.resident_bytes), ("CUDA", growth.cuda_bytes)]
    totals += [("tensors", growth.tensor_bytes), ("objects", growth.bytes)]
    grown = ", ".join(f"{name} {signed_size(many)}" for name, many in totals if many is not None)
    steps = f", {plural(growth.steps, 'step')}" if growth.steps else ""
    rank = f" of rank {growth.rank}" if growth.rank else ""
    return f"memory growth{rank} in {duration(growth.end_ns - growth.begin_ns)}{steps}: {grown}"


def titles(what: What) -> tuple[str, ...]:
    """Return the column titles of the table for ``what``."""
    return _HEADS[what]


def rows_of(growth: MemoryGrowth, what: What) -> list[GrowthRow]:
    """Return the rows of a record with this ``what``, sorted by bytes in descending order."""
    return [row for row in growth.rows if row.what == what]


def numbers(row: GrowthRow) -> tuple[str, str, str]:
    """Return the numeric columns of a row as text: bytes, count, current number."""
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
