"""How does what a process has more of than at an earlier point look on a terminal?"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from otel_mlperf.report.lines import WIDTH, Line, broken, place_text, short, text
from otel_mlperf.report.quantities import duration, plural, size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_mlperf.growth_file import GrowthRow, MemoryGrowth, What

TOP: Final = 10
_SHOWN: Final = 5
"""Of several that were asked for, the last ones."""
_COLUMN: Final = 10
_HEADS: Final[dict[What, tuple[str, ...]]] = {
    "tensor": ("grown", "more", "now", "tensors"),
    "type": ("grown", "more", "now", "objects"),
    "site": ("grown", "blocks", "now", "allocated by"),
}


KINDS: Final = tuple(_HEADS)
"""Of rows, in the order in which they are shown."""


def growth_text(growth: MemoryGrowth) -> str:
    """As ``print`` shows it."""
    return text(growth_lines(growth), color=False, unicode=True).removesuffix("\n")


def growth_html(growth: MemoryGrowth) -> str:
    """As a notebook shows it; what is given is escaped."""
    return f"<pre>{escape(growth_text(growth))}</pre>"


def all_growth_lines(growths: Sequence[MemoryGrowth], *, top: int, width: int) -> list[Line]:
    """The last ones, each with an empty line above it but the first."""
    lines: list[Line] = []
    if len(growths) > _SHOWN:
        earlier = plural(len(growths) - _SHOWN, "earlier point")
        lines += [[(f"memory grown since {earlier}: --json", "dim")], []]
    for growth in growths[-_SHOWN:]:
        lines += [*growth_lines(growth, top=top, width=width), []]
    return lines[:-1]


def growth_lines(growth: MemoryGrowth, *, top: int = TOP, width: int = WIDTH) -> list[Line]:
    """A line for all of it, then tables of tensors, types and lines."""
    lines: list[Line] = [[(line, "bold")] for line in broken(head_text(growth), width)]
    lines += [[(f"  missing: {why}", "yellow")] for why in growth.missing]
    shown = 0
    for what in KINDS:
        rows = rows_of(growth, what)
        shown += len(rows[:top])
        lines += _table(what, rows[:top], width) if rows else []
    if (more := len(growth.rows) + growth.more - shown) > 0:
        lines.append([(f"  {plural(more, 'other')}: --top, or --json", "dim")])
    return lines


def head_text(growth: MemoryGrowth) -> str:
    """What all of it comes to."""
    told = [("process", growth.resident_bytes), ("CUDA", growth.cuda_bytes)]
    told += [("tensors", growth.tensor_bytes), ("objects", growth.bytes)]
    grown = ", ".join(f"{name} {signed_size(many)}" for name, many in told if many is not None)
    steps = f", {plural(growth.steps, 'step')}" if growth.steps else ""
    rank = f" of rank {growth.rank}" if growth.rank else ""
    return f"memory{rank} in {duration(growth.end_ns - growth.begin_ns)}{steps}: {grown}"


def titles(what: What) -> tuple[str, ...]:
    """Of the columns."""
    return _HEADS[what]


def rows_of(growth: MemoryGrowth, what: What) -> list[GrowthRow]:
    """The most bytes first."""
    return [row for row in growth.rows if row.what == what]


def numbers(row: GrowthRow) -> tuple[str, str, str]:
    """What stands in its columns."""
    return signed_size(row.bytes), f"{row.count:+,}", f"{row.now_count:,}"


def signed_size(many: int) -> str:
    """``+3.1 MB``; nothing has no sign."""
    sign = "-" if many < 0 else "+" * bool(many)
    return sign + size(abs(many))


def _table(what: What, rows: Iterable[GrowthRow], width: int) -> list[Line]:
    *heads, last = titles(what)
    lines: list[Line] = [[("".join(f"{head:>{_COLUMN}}" for head in heads) + f"  {last}", "dim")]]
    for row in rows:
        cells = "".join(f"{cell:>{_COLUMN}}" for cell in numbers(row))
        lines.append([(f"{cells}  {_what(row, width - len(cells) - 2)}", "")])
    return lines


def _what(row: GrowthRow, room: int) -> str:
    return place_text(row.file, row.line, room) if row.file else short(row.name, room)
