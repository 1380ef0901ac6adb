"""Base class of the rows of stored tables, and derivation of columns from the fields of rows."""

from collections.abc import Sequence
from types import NoneType
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args

import msgspec

ColumnType = Literal["int32", "int64", "double", "bool", "text", "word"]
"""Types of columns. ``word`` is text with few distinct values, each of which is stored once."""
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
    """Row of a stored table, whose fields are the table's columns in the same order.

    Columns that are missing in parts of earlier versions have the default None.
    """


class RankRow(Row, frozen=True, kw_only=True):
    """Row of a table with data of one process (rank and restart)."""

    rank: Int32
    """Rank of the process."""
    restart: Int32
    """Number of earlier starts of this rank."""


def transposed(kind: type[Row], rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Return the rows of one table as lists of values by column name."""
    return {name: [getattr(row, name) for row in rows] for name in kind.__struct_fields__}


class Column(NamedTuple):
    """Column of a stored table."""

    name: str
    type: ColumnType
    null: bool
    """Whether values may be null."""
    added: bool
    """Whether the column is missing in parts of earlier versions, whose rows then have null."""


def columns_of(row: type[Row]) -> tuple[Column, ...]:
    """Return the columns of the table with rows of type ``row``."""
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
