"""``otel-mlperf import``: import of torch.profiler traces into a run, a server or a file."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from otel_mlperf.cli.arguments import JsonOption  # noqa: TC001 - typer reads them
from otel_mlperf.cli.output import Progress, to_json, warn
from otel_mlperf.errors import UsageError

if TYPE_CHECKING:
    from otel_mlperf.importing.trace_import import Importer
    from otel_mlperf.report.import_notes import Imported


_Traces = Annotated[
    list[Path],
    typer.Argument(metavar="TRACE...", help="Trace files of a profiler (*.json, *.json.gz)."),
]
_Run = Annotated[
    str | None,
    typer.Option(help="Import into this run; created if it does not exist."),
]
_Endpoint = Annotated[
    str | None, typer.Option(help="OTLP endpoint to send to, e.g. http://localhost:4318.")
]
_Out = Annotated[
    Path | None,
    typer.Option(help="Write OTLP/JSON to this file, one request per line; - for standard output."),
]
_Budget = Annotated[
    str,
    typer.Option(
        metavar="N|BYTES|none",
        help="Limit of spans per trace (a step), as a number or a size, e.g. 2MiB; events beyond "
        "the limit are rolled up.",
    ),
]
_Rank = Annotated[
    int | None, typer.Option(help="Rank to assume if a trace does not record one.", min=0)
]
_Capture = Annotated[
    Path | None,
    typer.Option(
        metavar="TRACE",
        help="Trace recorded during graph capture: names the operators of kernels in replayed "
        "CUDA or HIP graphs.",
    ),
]
_Force = Annotated[bool, typer.Option("--force", help="Replace the file of --out if it exists.")]


def import_(  # noqa: PLR0913, PLR0917 - the options of the command
    traces: _Traces,
    run: _Run = None,
    endpoint: _Endpoint = None,
    out: _Out = None,
    budget: _Budget = "",
    rank: _Rank = None,
    capture: _Capture = None,
    force: _Force = False,
    as_json: JsonOption = False,
) -> None:
    """Turn traces of torch.profiler into spans and kernel totals.

    Without --run, --endpoint and --out it only prints what the traces contain. A trace that is
    imported twice is stored once.
    """
    from otel_mlperf.importing.trace_import import STDOUT, Importer, judge, without_descriptions
    from otel_mlperf.kineto.convert import return_freed_memory
    from otel_mlperf.replay.span_requests import traces_settings

    is_piped = str(out) == STDOUT
    if is_piped and as_json:
        raise UsageError("importing: --json and --out - both use standard output; choose one")
    with ExitStack() as stack:
        return_freed_memory()
        importer = Importer(budget, rank, capture)
        if run:
            importer.put_into(run)
        if endpoint:
            importer.send_to(traces_settings(endpoint, os.environ, warn), stack)
        if out:
            importer.write_to(out, traces, stack, is_replaced=force)
        stream = None if as_json else sys.stderr if is_piped else sys.stdout
        traces = without_descriptions(traces)
        imported = _all(importer, traces, stream)
        if not imported:
            judge(imported, len(traces))  # raises within the block, so that no file is written
    if as_json:
        from otel_mlperf.report.import_notes import ImportedTraces

        print(to_json(ImportedTraces(traces=imported)))
    elif not (run or endpoint or out):
        print("\nnothing was stored or sent: pass --run NAME, --endpoint URL or --out FILE")
    judge(imported, len(traces))


def _all(importer: Importer, traces: list[Path], stream: TextIO | None) -> list[Imported]:
    from otel_mlperf.report.import_notes import imported_lines
    from otel_mlperf.terminal_lines import shown_in, text, width_of

    imported = []
    shown_on = stream or sys.stdout
    (color, unicode), width = shown_in(shown_on), width_of(shown_on)
    with Progress(traces) as progress:
        for taken in importer.take_all(traces, progress.of, progress.warn):
            imported.append(taken)
            if stream is not None:
                lines = text(imported_lines(taken, width), color=color, unicode=unicode)
                progress.write(lines, stream)
    return imported
