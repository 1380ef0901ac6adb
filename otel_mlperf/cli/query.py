"""``otel-mlperf query``: SQL query on a run's tables."""

from __future__ import annotations

from typing import Annotated

import typer

from otel_mlperf.cli.arguments import JsonOption, RunArgument  # noqa: TC001 - typer reads them

_Sql = Annotated[str, typer.Argument(metavar="SQL", help="One SELECT in the SQL of DuckDB.")]


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

    The tables are steps, sections, spans, readings, values, totals and more. Only this run's tables
    are accessible, and nothing is written. `SHOW TABLES` lists them, `DESCRIBE steps` the columns
    of one. In `spans`, `kind` is `event` for an event of a profiler and `event_rollup` for a span
    that was sent in place of several events, which are rows as well: count only one of the two.
    """
    from functools import partial

    from otel_mlperf.cli.output import print_answer
    from otel_mlperf.report.query_table import render_query
    from otel_mlperf.store.run_folders import find_run
    from otel_mlperf.store.run_query import run_query_in_process

    answer = run_query_in_process(find_run(run), sql, rows, seconds)
    print_answer(answer, partial(render_query, answer), as_json=as_json)
