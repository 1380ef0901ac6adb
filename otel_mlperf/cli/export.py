"""``otel-mlperf export``: how does a run get into a viewer of timelines, or into other tools?"""

from __future__ import annotations

from typing import Annotated

import typer

from otel_mlperf.cli.arguments import RunArgument  # noqa: TC001 - typer reads them
from otel_mlperf.cli.output import say
from otel_mlperf.errors import UsageError


def export(
    run: RunArgument = "latest",
    perfetto: Annotated[
        bool, typer.Option("--perfetto", help="A Perfetto trace, the default.")
    ] = False,
    chrome: Annotated[
        bool, typer.Option("--chrome", help="A Chrome trace: JSON, for chrome://tracing too.")
    ] = False,
    otlp_json: Annotated[
        bool, typer.Option("--otlp-json", help="The spans that servers get, as lines of OTLP/JSON.")
    ] = False,
    steps: Annotated[
        str | None,
        typer.Option("--steps", "--step", metavar="N|A-B", help="Only these training steps."),
    ] = None,
    rank: Annotated[int | None, typer.Option(help="Only this rank.")] = None,
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", metavar="FILE", help="In the current folder by default."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the file if it is there.")
    ] = False,
) -> None:
    """Write a run into a file: its steps, sections, kernels and readings on one timeline."""
    from pathlib import Path

    from otel_mlperf.analysis.steps.step_selection import select
    from otel_mlperf.replay.run_export import CHROME, OTLP_JSON, PERFETTO, parse_steps
    from otel_mlperf.report.quantities import size
    from otel_mlperf.store.run_folders import find_run
    from otel_mlperf.whole_file import new_file

    if perfetto + chrome + otlp_json > 1:
        raise UsageError("exporting: give one of --perfetto, --chrome and --otlp-json")
    form = CHROME if chrome else OTLP_JSON if otlp_json else PERFETTO
    numbers = None if steps is None else parse_steps(steps)
    selected = select(find_run(run), numbers, rank)
    path = Path(out or f"{selected.run.path.resolve().name}{form.ending}")
    with new_file(path, is_replaced=force) as file:
        content = form.write(selected, file)
    say(f"{path}: {size(path.stat().st_size)}, {content}\n{form.reader}")
