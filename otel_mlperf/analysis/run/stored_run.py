"""A stored run as Arrow tables, for programs and notebooks.

Arrow is used because pandas, polars and DuckDB all read it. DuckDB and pyarrow are imported only
when a table is requested.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from otel_mlperf.errors import MissingPackage, NoSuchTable
from otel_mlperf.store.run_folders import LATEST, find_run
from otel_mlperf.store.table_reader import Store
from otel_mlperf.tables import TABLES
from otel_mlperf.upper_parts import upper

if TYPE_CHECKING:
    import os
    from pathlib import Path

    import duckdb
    import pyarrow as pa


class RunTable:
    """One table of a run; it implements Arrow's C stream interface."""

    def __init__(self, arrow: pa.Table) -> None:
        self._arrow = arrow

    def __len__(self) -> int:
        return int(self._arrow.num_rows)

    def __repr__(self) -> str:
        return f"<RunTable of {len(self):,} rows: {', '.join(self.columns)}>"

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._arrow.__arrow_c_stream__(requested_schema)

    @property
    def columns(self) -> list[str]:
        """Return the names of the table's columns, described in ``docs/reading-runs.md``."""
        return list(self._arrow.column_names)

    def to_arrow(self) -> pa.Table:
        """Return the table as a ``pyarrow.Table``."""
        return self._arrow

    def to_pandas(self) -> Any:
        """Return the table as a ``pandas.DataFrame``.

        Raises:
            MissingPackage: pandas is not installed.
        """
        _needed("pandas")
        return self._arrow.to_pandas()

    def to_polars(self) -> Any:
        """Return the table as a ``polars.DataFrame``.

        Raises:
            MissingPackage: polars is not installed.
        """
        return _needed("polars").from_arrow(self._arrow)

    def to_duckdb(self) -> duckdb.DuckDBPyRelation:
        """Return a DuckDB relation: ``table.to_duckdb().filter("number > 100").df()``."""
        import duckdb

        return duckdb.from_arrow(self._arrow)


class StoredRun:
    """A run on disk; while it is recorded, the part that the agent has stored so far."""

    def __init__(self, path: Path, run_id: str, name: str) -> None:
        self.path, self.id, self.name = path, run_id, name

    def __repr__(self) -> str:
        return f"<StoredRun {self.name!r} {self.path}>"

    def _repr_html_(self) -> str:
        return str(upper("render_run")(self.path))

    def steps(self) -> RunTable:
        """Return one row for each step that ended."""
        return self.table("steps")

    def sections(self) -> RunTable:
        """Return one row per step and section; outside steps, one per flush and section path."""
        return self.table("sections")

    def readings(self) -> RunTable:
        """Return one row for each reading of process, host or device."""
        return self.table("readings")

    def values(self) -> RunTable:
        """Return one row for each value passed to ``log()``."""
        return self.table("values")

    def marks(self) -> RunTable:
        """Return one row for each call of ``run.mark()``."""
        return self.table("marks")

    def kernels(self) -> RunTable:
        """Return one row for each profiler window and kernel in it."""
        return self._query("SELECT * FROM totals WHERE what = 'kernel' ORDER BY total_ns DESC")

    def table(self, name: str) -> RunTable:
        """Return a table of the run folder, in time order.

        Raises:
            NoSuchTable: no table has that name.
            StoreError: a file of the run cannot be read.
        """
        if name not in TABLES:
            raise NoSuchTable(f"reading table {name!r}: no such table; tables: {', '.join(TABLES)}")
        columns = [column.name for column in TABLES[name]]
        order = [column for column in ("start_ns", "time_ns", "rank") if column in columns]
        return self._query(
            f'SELECT * FROM "{name}"' + (f" ORDER BY {', '.join(order)}" * bool(order))
        )

    def _query(self, sql: str) -> RunTable:
        return RunTable(Store(self.path).arrow(sql))


def read_run(run: str | os.PathLike[str] = LATEST) -> StoredRun:
    """Open a stored run, for programs and notebooks.

    ::

        steps = om.read_run("latest").steps().to_pandas()

    Args:
        run: ``latest``, a name, the beginning of an id, or the path of a run folder. Names and ids
            are searched for in ``$OTEL_MLPERF_DIR`` (default: ``./otel-runs``).

    Raises:
        NoSuchRun: no run matches, or the beginning of the id is ambiguous.
        StoreError: the run folder cannot be read.
    """
    found = find_run(str(run))
    return StoredRun(found.path, found.facts.id, found.facts.name)


def _needed(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingPackage(
            f"converting to a table of {package}: {package} is not installed ({error}); "
            f"'pip install {package}', or use to_arrow()"
        ) from error
