"""``otel-mlperf import``: how does a trace of torch.profiler get into a run, a server or a file?"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from otel_mlperf.cli.arguments import JsonOption  # noqa: TC001 - typer reads them
from otel_mlperf.cli.progress import warn
from otel_mlperf.errors import TraceError, Unreachable, UsageError
from otel_mlperf.journal.window import WINDOW_SUFFIX

if TYPE_CHECKING:
    from otel_mlperf.importing.trace_import import Importer
    from otel_mlperf.report.import_notes import Imported

TracesArgument = Annotated[
    list[Path], typer.Argument(metavar="TRACE...", help="Files *.json or *.json.gz of a profiler.")
]


def import_(
    traces: TracesArgument,
    run: Annotated[
        str | None,
        typer.Option(help="Put it into this run; where there is none of that name, make it."),
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option(help="Send it there, like http://localhost:4318.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write OTLP/JSON, one request a line, to this file; - is standard output."
        ),
    ] = None,
    budget: Annotated[
        str,
        typer.Option(
            metavar="N|BYTES|none",
            help="Spans of one OpenTelemetry trace (a step), or bytes like 2MiB; "
            "the rest is rolled up.",
        ),
    ] = "",
    rank: Annotated[
        int | None, typer.Option(help="Rank of traces that do not say it.", min=0)
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the file of --out if it is there.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Turn traces of torch.profiler into spans and kernel totals.

    Without --run, --endpoint and --out it says what is in them. The same trace twice is one.
    """
    from otel_mlperf.importing.imported_run import find_or_none
    from otel_mlperf.importing.trace_import import STDOUT, Importer, parse_budget
    from otel_mlperf.otlp.client import Client
    from otel_mlperf.replay.span_delivery import traces_settings

    is_piped = str(out) == STDOUT
    if is_piped and as_json:
        raise UsageError("importing: --json and --out - would share standard output; give one")
    with ExitStack() as stack:
        importer = Importer(parse_budget(budget), rank)
        if run:
            importer.run = find_or_none(run)
            importer.new_run = "" if importer.run else run
        if endpoint:
            settings = traces_settings(endpoint, os.environ, warn)
            importer.client = stack.enter_context(closing(Client(settings)))
        if out:
            importer.open(out, traces, stack, is_replaced=force)
        said = None if as_json else sys.stderr if is_piped else sys.stdout
        traces = _without_descriptions(traces)
        found = _all(importer, traces, said)
        if not found:
            _judge(found, len(traces))  # here, so that no file is written
    if as_json:
        from otel_mlperf.report.json_output import to_json

        print(to_json(found))
    elif not (run or endpoint or out):
        print("\nnothing was stored or sent: give --run NAME, --endpoint URL or --out FILE")
    _judge(found, len(traces))


def _without_descriptions(paths: list[Path]) -> list[Path]:
    """``profiles/*.json`` names what the recorder says of windows, too: left out beside traces."""
    traces = [path for path in paths if not path.name.endswith(WINDOW_SUFFIX)]
    return traces or paths


def _all(importer: Importer, traces: list[Path], said: TextIO | None) -> list[Imported]:
    """Imports one after the other; what is no trace is said, and the others still come."""
    from otel_mlperf.cli.progress import Progress
    from otel_mlperf.report.import_notes import imported_lines
    from otel_mlperf.report.lines import shown_in, text

    found = []
    color, unicode = shown_in(said or sys.stdout)
    with Progress(traces) as progress:
        for trace in traces:
            try:
                one = importer.take(trace, progress.of(trace))
            except TraceError as error:
                progress.say(f"otel-mlperf: {error}")
                continue
            found.append(one)
            if said is not None:
                lines = text(imported_lines(one), color=color, unicode=unicode)
                progress.pause(partial(print, lines, end="", file=said, flush=True))
    return found


def _judge(found: list[Imported], wanted: int) -> None:
    """Ends with what went wrong.

    Raises:
        Unreachable: a server refused spans.
        TraceError: a file is damaged, or none at all.
    """
    from otel_mlperf.report.quantities import plural

    refused = sum(one.refused or 0 for one in found)
    if refused:
        raise Unreachable(f"importing: the server refused {refused:,} spans")
    damaged, unreadable = sum(bool(one.damage) for one in found), wanted - len(found)
    if damaged or unreadable:
        counts = [f"{damaged} damaged"] if damaged else []
        counts += [f"{unreadable} not readable"] if unreadable else []
        around = "; everything around the damage was imported" if damaged else ""
        raise TraceError(f"importing: of {plural(wanted, 'trace')} {', '.join(counts)}{around}")
