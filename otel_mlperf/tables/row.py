"""Base class of the rows of stored tables, and the columns that follow from their fields."""

from collections.abc import Sequence
from types import NoneType
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args

import msgspec

ColumnType = Literal["int32", "int64", "double", "bool", "text", "word"]
"""``word`` is text of few distinct values, stored once each."""
Int32 = Annotated[int, "int32"]
Word = Annotated[str, "word"]
_TYPES: Final[dict[Any, ColumnType]] = {
    int: "int64",
    Int32: "int32",
    float: "double",
    bool: "bool",
    str: "text",
    Word: "word",
}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Row of a stored table: its fields are the columns, in their order.

    Columns that were added later default to None: parts of earlier versions lack them.
    """


class RankRow(Row, frozen=True, kw_only=True):
    """Row of a table of one process."""

    rank: Int32
    """Rank of the process."""
    restart: Int32
    """Number of earlier starts of this rank."""


def transposed(kind: type[Row], rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Return rows of one table as columns."""
    return {name: [getattr(row, name) for row in rows] for name in kind.__struct_fields__}


class Column(NamedTuple):
    """Column of a table."""

    name: str
    type: ColumnType
    null: bool
    """Whether a row may lack it."""
    added: bool
    """Whether parts of earlier versions lack it; their rows have null."""


def columns_of(row: type[Row]) -> tuple[Column, ...]:
    """Return the columns of the table with these rows."""
    hints: dict[str, Any] = {}
    for base in reversed(row.__mro__):
        hints |= base.__annotations__ if issubclass(base, Row) else {}
    fields, defaults = row.__struct_fields__, row.__struct_defaults__
    added = {
        field
        for field, default in zip(reversed(fields), reversed(defaults), strict=False)
        if default is None
    }
    return tuple(_column(field, hints[field], is_added=field in added) for field in fields)


def _column(name: str, hint: Any, *, is_added: bool) -> Column:
    is_null = NoneType in get_args(hint)
    kind = get_args(hint)[0] if is_null else hint
    return Column(name, _TYPES[kind], is_null, is_added)
