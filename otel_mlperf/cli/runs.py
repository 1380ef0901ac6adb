"""``otel-mlperf runs``: which runs are there?"""

from __future__ import annotations

from typing import Annotated

import typer

from otel_mlperf.cli.arguments import JsonOption  # noqa: TC001 - typer reads them
from otel_mlperf.cli.output import print_answer, warn


def runs(
    as_json: JsonOption = False,
    every: Annotated[bool, typer.Option("--all", help="Not only the newest 20.")] = False,
) -> None:
    """List the runs, newest first.

    Their steps are training steps; of a run that does not train those of its first phase.
    """
    from functools import partial

    from otel_mlperf.analysis.summary.run_list import overview
    from otel_mlperf.report.run_table import render_runs
    from otel_mlperf.store.run_folders import runs_dir, scan_runs

    folder = runs_dir()
    known, bad = scan_runs(folder)
    shown = [overview(run) for run in (known if every else known[:20])]
    draw = partial(render_runs, shown, str(folder), len(known) - len(shown), tuple(bad))
    print_answer(shown, draw, as_json=as_json)
    for error in bad.values() if as_json else ():  # the table names them itself
        warn(str(error))
