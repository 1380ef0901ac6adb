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
"""Start of a text that a spreadsheet would evaluate."""


def write_tables(
    store: Store, folder: Path, form: Form, *, is_replaced: bool = False
) -> dict[str, int]:
    """Write ``TABLE.csv`` or ``TABLE.parquet`` for each table that has rows; return row counts.

    Columns are those of the tables, in their order. Times are Unix nanoseconds, unknown values are
    empty in CSV. No text has control characters, and none is a formula in CSV. ``is_replaced`` is
    whether files of these names may be replaced.

    Raises:
        NothingToExport: no table has a row.
        OutputError: the folder exists and may not be written to, or the place refuses.
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
    """Select the table with control characters replaced, and formulas quoted in CSV.

    Control characters become question marks. Numbers may start with a minus and stay unchanged.
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
