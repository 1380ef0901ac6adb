"""``otel-mlperf query``: SQL query on a run's tables."""

from __future__ import annotations

from typing import Annotated

import typer

from otel_mlperf.cli.arguments import JsonOption, RunArgument  # noqa: TC001 - typer reads them

_Sql = Annotated[str, typer.Argument(metavar="SQL", help="One SELECT statement in DuckDB's SQL.")]


def query(
    run: RunArgument,
    sql: _Sql,
    rows: Annotated[int, typer.Option(metavar="N", min=1, help="Maximum number of rows.")] = 200,
    seconds: Annotated[
        float, typer.Option(min=0.0, max=86_400.0, help="Timeout in seconds.")
    ] = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Query the tables of a run with SQL.

    `SHOW TABLES` lists the tables (steps, sections, spans, readings, …), `DESCRIBE steps` the
    columns of a table. Access is limited to the tables of this run, and read-only. In `spans`, rows
    of kind `event_rollup` summarize rows of kind `event`: count only one of these kinds.
    """
    from functools import partial

    from otel_mlperf.cli.output import print_answer
    from otel_mlperf.report.query_table import render_query
    from otel_mlperf.store.run_folders import find_run
    from otel_mlperf.store.run_query import run_query_in_process

    answer = run_query_in_process(find_run(run), sql, rows, seconds)
    print_answer(answer, partial(render_query, answer), as_json=as_json)
