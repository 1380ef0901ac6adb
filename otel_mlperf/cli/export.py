"""``otel-mlperf export``: export of a run to timeline viewers, OTLP, CSV or Parquet."""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from otel_mlperf.cli.arguments import RunArgument  # noqa: TC001 - typer reads them
from otel_mlperf.cli.output import echo, warn
from otel_mlperf.errors import Unreachable, UsageError

if TYPE_CHECKING:
    from otel_mlperf.store.run_folders import RunFolder
    from otel_mlperf.store.table_files import Form


def export(  # noqa: PLR0913, PLR0917 - one for each option
    run: RunArgument = "latest",
    perfetto: Annotated[
        bool, typer.Option("--perfetto", help="Write a Perfetto trace (default).")
    ] = False,
    chrome: Annotated[
        bool,
        typer.Option(
            "--chrome", help="Write a Chrome trace as JSON, for chrome://tracing or Perfetto."
        ),
    ] = False,
    otlp_json: Annotated[
        bool,
        typer.Option("--otlp-json", help="Write the sampled spans as lines of OTLP/JSON."),
    ] = False,
    otlp: Annotated[
        bool, typer.Option("--otlp", help="Send the sampled spans to an OTLP server.")
    ] = False,
    endpoint: Annotated[
        str | None,
        typer.Option(
            help="OTLP endpoint to send to, e.g. http://localhost:4318; implies --otlp (default: "
            "OTEL_EXPORTER_OTLP_ENDPOINT).",
        ),
    ] = None,
    csv: Annotated[
        bool, typer.Option("--csv", help="Write a folder with a CSV file for each table.")
    ] = False,
    parquet: Annotated[
        bool, typer.Option("--parquet", help="Write a folder with a Parquet file for each table.")
    ] = False,
    steps: Annotated[
        str | None,
        typer.Option("--steps", "--step", metavar="N|A-B", help="Only these training steps."),
    ] = None,
    rank: Annotated[int | None, typer.Option(help="Only this rank (default: all).")] = None,
    out: Annotated[
        str | None,
        typer.Option(
            "--out", "-o", metavar="PATH", help="Output path (default: in the current folder)."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
) -> None:
    """Write a run to a file, or send its spans to a server.

    --perfetto and --chrome write a timeline of steps, sections, kernels and readings, --csv and
    --parquet the tables that "otel-mlperf query" reads. Sending spans again is safe, because their
    ids do not change.
    """
    from pathlib import Path

    from otel_mlperf.analysis.steps.step_selection import select
    from otel_mlperf.quantities import size
    from otel_mlperf.replay.run_export import CHROME, OTLP_JSON, PERFETTO, parse_steps
    from otel_mlperf.store.run_folders import find_run
    from otel_mlperf.whole_file import new_file

    is_sent = otlp or endpoint is not None
    if perfetto + chrome + otlp_json + is_sent + csv + parquet > 1:
        raise UsageError(
            "exporting: choose only one of --perfetto, --chrome, --otlp-json, --otlp, --csv and "
            "--parquet"
        )
    if is_sent:
        if (steps, rank, out, force) != (None, None, None, False):
            raise UsageError(
                "--otlp sends all sampled spans: omit --steps, --rank, --out and --force"
            )
        send(run, endpoint)
        return
    if csv or parquet:
        if steps is not None:
            raise UsageError(f"--steps {steps}: tables are exported completely; omit --steps")
        _export_tables(find_run(run), "csv" if csv else "parquet", rank, out, force)
        return
    form = CHROME if chrome else OTLP_JSON if otlp_json else PERFETTO
    numbers = None if steps is None else parse_steps(steps)
    selected = select(find_run(run), numbers, rank)
    path = Path(out or f"{selected.run.path.resolve().name}{form.ending}")
    with new_file(path, is_replaced=force) as file:
        content = form.write(selected, file)
    echo(f"{path}: {size(path.stat().st_size)}, {content}\n{form.reader}")


def send(run: str, endpoint: str | None) -> None:
    """Send the sampled spans of a run to ``endpoint`` (None: the environment's endpoint).

    Sending spans repeatedly is harmless, since their ids do not change.
    """
    from otel_mlperf.otlp.grpc_client import open_client
    from otel_mlperf.replay.span_requests import count_spans, deliver, requests, traces_settings
    from otel_mlperf.settings.config import ENDPOINT
    from otel_mlperf.settings.run_settings import read_stored
    from otel_mlperf.store.run_folders import find_run
    from otel_mlperf.store.table_reader import Store

    chosen = find_run(run)
    recorded = read_stored(chosen.path, os.environ).recorded_destinations.get(ENDPOINT, "")
    settings = traces_settings(endpoint, os.environ, warn, recorded and shlex.quote(recorded))
    store = Store(chosen.path)
    wanted, sent, refused = count_spans(store), 0, 0
    with closing(open_client(settings)) as client:
        for spans, body in requests(chosen, store):
            lost = deliver(client, body)
            sent, refused = sent + spans - lost, refused + lost
            if sys.stderr.isatty():
                print(f"\r{sent:,} of {wanted:,} spans", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    echo(f"{sent:,} of {wanted:,} sampled spans of {chosen.path.name} sent to {settings.endpoint}")
    if refused:
        raise Unreachable(f"sending to {settings.endpoint}: the server rejected {refused:,} spans")


def _export_tables(
    run: RunFolder, form: Form, rank: int | None, out: str | None, force: bool
) -> None:
    from pathlib import Path

    from otel_mlperf.analysis.steps.step_selection import select
    from otel_mlperf.quantities import plural
    from otel_mlperf.store.table_files import write_tables

    folder = Path(out or f"{run.path.resolve().name}-{form}")
    written = write_tables(select(run, rank=rank).store, folder, form, is_replaced=force)
    rows = ", ".join(f"{table} {count:,}" for table, count in written.items())
    echo(f"{folder}: {plural(len(written), 'table')}\nrows: {rows}")
