"""``otel-mlperf import``: how does a trace of torch.profiler get into a run, a server or a file?"""

from __future__ import annotations

import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from otel_mlperf.cli.commands import JsonOption  # noqa: TC001 - typer reads them
from otel_mlperf.errors import TraceError, Unreachable

if TYPE_CHECKING:
    from otel_mlperf.cli.importing import Importer
    from otel_mlperf.report.imported import Imported

TracesArgument = Annotated[
    list[Path], typer.Argument(metavar="TRACE...", help="Files *.json or *.json.gz of a profiler.")
]


def import_(
    traces: TracesArgument,
    run: Annotated[str | None, typer.Option(help="Put it into the folder of this run.")] = None,
    endpoint: Annotated[
        str | None, typer.Option(help="Send it there, like http://localhost:4318.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write OTLP/JSON, one request a line, to this file.")
    ] = None,
    budget: Annotated[
        str,
        typer.Option(
            metavar="N|BYTES|none",
            help="Spans of a trace, or bytes like 2MiB; the rest is rolled up.",
        ),
    ] = "",
    rank: Annotated[
        int | None, typer.Option(help="Rank of traces that do not say it.", min=0)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Turn traces of torch.profiler into spans and kernel totals.

    Without --run, --endpoint and --out it says what is in them. The same trace twice is one.
    """
    from otel_mlperf.cli.importing import Importer, parse_budget
    from otel_mlperf.cli.send import traces_settings
    from otel_mlperf.otlp.client import Client
    from otel_mlperf.store.runs import find_run

    with ExitStack() as stack:
        importer = Importer(parse_budget(budget), rank)
        importer.run = find_run(run) if run else None
        if endpoint:
            importer.client = stack.enter_context(closing(Client(traces_settings(endpoint))))
        if out:
            importer.open(out, stack)
        found = _all(importer, traces, as_json=as_json)
    if as_json:
        from otel_mlperf.report.json import to_json

        print(to_json(found))
    elif not (run or endpoint or out):
        print("\nnothing was stored or sent: give --run latest, --endpoint URL or --out FILE")
    _judge(found, len(traces))


def _all(importer: Importer, traces: list[Path], *, as_json: bool) -> list[Imported]:
    """Imports one after the other; what is no trace is said, and the others still come."""
    from otel_mlperf.cli.importing import Progress
    from otel_mlperf.report.imported import imported_lines
    from otel_mlperf.report.lines import shown_in, text

    found = []
    color, unicode = shown_in(sys.stdout)
    with Progress(traces) as progress:
        for trace in traces:
            try:
                one = importer.take(trace, progress.of(trace))
            except TraceError as error:
                progress.say(f"otel-mlperf: {error}")
                continue
            found.append(one)
            if not as_json:
                lines = text(imported_lines(one), color=color, unicode=unicode)
                progress.pause(lambda lines=lines: print(lines, end="", flush=True))  # type: ignore[misc]
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
