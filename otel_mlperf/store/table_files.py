"""Export of a run's tables to CSV or Parquet files for other programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from otel_mlperf.errors import NothingToExport, OutputError
from otel_mlperf.tables import TABLES
from otel_mlperf.terminal_lines import CONTROLS
from otel_mlperf.whole_file import replacing

if TYPE_CHECKING:
    from pathlib import Path

    from otel_mlperf.store.table_reader import Store

Form = Literal["csv", "parquet"]
_OPTIONS: Final[dict[Form, str]] = {
    "csv": "FORMAT csv, HEADER",
    "parquet": "FORMAT parquet, COMPRESSION zstd",
}
_FORMULA: Final = r"^\s*[=+\-@\x{ff1d}\x{ff0b}\x{ff0d}\x{ff20}]|^[\t\r\n]"
"""Start of texts that a spreadsheet would evaluate as formulas."""


def write_tables(
    store: Store, folder: Path, form: Form, *, is_replaced: bool = False
) -> dict[str, int]:
    """Write each non-empty table to ``TABLE.csv`` or ``TABLE.parquet``; return row counts by table.

    The columns are those of the tables, in the same order. Times are Unix nanoseconds; null is an
    empty cell in CSV. Control characters in texts are replaced, and formulas in CSV are quoted.
    ``is_replaced`` allows replacing existing files.

    Raises:
        NothingToExport: all tables are empty.
        OutputError: the folder exists and ``is_replaced`` is False, or writing fails.
        StoreError: a file of the run cannot be read.
    """
    counts: dict[str, int] = {}
    for table in TABLES:
        ((count,),) = store.rows(f"SELECT count(*) FROM {table}")
        if count:
            counts[table] = count
    if not counts:
        raise NothingToExport(f"writing {folder}: all tables of the run are empty")
    try:
        folder.mkdir(exist_ok=is_replaced)
        for table in counts:
            with replacing(folder / f"{table}.{form}", is_private=False) as name:
                place = name.replace("'", "''")
                rows = _as_plain_text(table, form)
                store.rows(f"COPY {rows} TO '{place}' ({_OPTIONS[form]})")
    except FileExistsError as error:
        raise OutputError(
            f"writing {folder}: the folder already exists; write into it with --force, or choose "
            "another with --out"
        ) from error
    except OSError as error:
        why = error.strerror or error
        raise OutputError(f"writing {folder}: {why}; choose another place with --out") from error
    return counts


def _as_plain_text(table: str, form: Form) -> str:
    """Return SQL that selects the table with safe texts; number columns are unchanged.

    Control characters become question marks. For CSV, formulas are quoted.
    """
    columns = [
        _plain_column(column.name, form) if column.type in ("text", "word") else column.name
        for column in TABLES[table]
    ]
    return f"(SELECT {', '.join(columns)} FROM {table})"


def _plain_column(name: str, form: Form) -> str:
    shown = f"regexp_replace({name}, '[{CONTROLS}]', '?', 'g')"
    if form == "csv":
        shown = f"if(regexp_matches({name}, '{_FORMULA}'), '''' || {shown}, {shown})"
    return f"{shown} AS {name}"
