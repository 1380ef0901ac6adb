"""``otel-mlperf runs``: which runs are there?"""

from __future__ import annotations

from typing import Annotated

import typer

from otel_mlperf.cli.arguments import JsonOption  # noqa: TC001 - typer reads them
from otel_mlperf.cli.progress import warn


def runs(
    as_json: JsonOption = False,
    every: Annotated[bool, typer.Option("--all", help="Not only the newest 20.")] = False,
) -> None:
    """List the runs, newest first.

    Their steps are training steps; of a run that does not train those of its first phase.
    """
    import sys

    from otel_mlperf.analysis.summary.run_list import overview
    from otel_mlperf.report.json_output import to_json
    from otel_mlperf.report.lines import shown_in
    from otel_mlperf.report.run_table import render_runs
    from otel_mlperf.store.run_folders import runs_dir, scan_runs

    folder = runs_dir()
    found, bad = scan_runs(folder)
    shown = [overview(run) for run in (found if every else found[:20])]
    if as_json:
        print(to_json(shown))
        for error in bad.values():
            warn(str(error))
        return
    color, unicode = shown_in(sys.stdout)
    more = len(found) - len(shown)
    print(render_runs(shown, str(folder), more, tuple(bad), color=color, unicode=unicode), end="")
