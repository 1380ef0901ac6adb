"""``otel-mlperf summary``: breakdown of a run's time, as a whole, by period or by function."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from otel_mlperf.cli.arguments import JsonOption, RunArgument  # noqa: TC001 - typer reads them
from otel_mlperf.cli.output import to_json
from otel_mlperf.errors import UsageError

if TYPE_CHECKING:
    from otel_mlperf.analysis.summary.summary_shapes import Summary
    from otel_mlperf.store.run_folders import RunFolder


def summary(  # noqa: PLR0913, PLR0917 - one for each option
    run: RunArgument = "latest",
    rank: Annotated[int | None, typer.Option(help="Only this rank (default: all).")] = None,
    phase: Annotated[
        str | None,
        typer.Option(
            help="Phase: train, validate, test, predict or request (default: train, if present)."
        ),
    ] = None,
    calls: Annotated[
        bool,
        typer.Option("--calls", help="Add a table with the durations of calls of each section."),
    ] = False,
    epochs: Annotated[bool, typer.Option("--epochs", help="Add a line for each epoch.")] = False,
    every: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Show the figures of each period of this length instead: 15m, 1h, 1d.",
        ),
    ] = None,
    functions: Annotated[
        bool,
        typer.Option("--functions", help="Show functions and lines of profiled sections instead."),
    ] = False,
    section: Annotated[
        str | None, typer.Option(help="With --functions: only the section with this name.")
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="With --functions: maximum number of rows (default: 10; with --json: all).",
        ),
    ] = None,
    as_json: JsonOption = False,
    as_html: Annotated[
        bool, typer.Option("--html", help="Print HTML with charts, for notebooks.")
    ] = False,
    closing: Annotated[bool, typer.Option("--closing", hidden=True)] = False,
    cell: Annotated[bool, typer.Option("--cell", hidden=True)] = False,
    wait_stored: Annotated[list[str] | None, typer.Option("--wait-stored", hidden=True)] = None,
) -> None:
    """Show where the time of a run went.

    --every shows one row per period: steps, requests, durations, CPUs and memory. Periods are
    aligned to local midnight. A step or request counts in the period in which it ended.

    --functions shows the functions with the most time in profiled sections, and the lines that
    allocated the most memory. Profiling is enabled in the program by `span(name, profile="calls")`,
    "lines" or "memory", or by profiler windows with stacks (`with_stack=True`).
    """
    if every is not None or functions:
        _check_view(every, calls or epochs or as_html, functions=functions)
        from otel_mlperf.cli.summary_views import print_functions, print_periods

        if every is not None:
            print_periods(run, every, rank, phase, as_json=as_json)
        else:
            print_functions(run, section, rank, top, as_json=as_json)
        return
    if section is not None or top is not None:
        raise UsageError("--section and --top require --functions")
    _print_breakdown(
        run, rank, phase, calls=calls, epochs=epochs, as_json=as_json, as_html=as_html,
        closing=closing, cell=cell, wait_stored=wait_stored,
    )  # fmt: skip


def _check_view(every: str | None, other: bool, *, functions: bool) -> None:
    if functions and every is not None:
        raise UsageError("--functions and --every cannot be combined: choose one")
    if other:
        given = "--functions" if functions else "--every"
        raise UsageError(f"{given} cannot be combined with --calls, --epochs or --html")


def _print_breakdown(  # noqa: PLR0913 - one for each option
    run: str,
    rank: int | None,
    phase: str | None,
    *,
    calls: bool,
    epochs: bool,
    as_json: bool,
    as_html: bool,
    closing: bool,
    cell: bool,
    wait_stored: list[str] | None,
) -> None:
    from otel_mlperf.analysis.findings.finding_sources import judge_run
    from otel_mlperf.analysis.run.run_processes import RUNNING
    from otel_mlperf.cli.stored_now import wait_for_now
    from otel_mlperf.journal.stored_wait import CELL_PATIENCE_S, PATIENCE_S
    from otel_mlperf.report.summary_table import render_summary
    from otel_mlperf.store.run_folders import find_run
    from otel_mlperf.terminal_lines import shown_in, width_of

    folder = find_run(run)
    # A notebook cell is updated later and shows the run's end until then: its timeout is longer.
    patience_s = CELL_PATIENCE_S if cell else PATIENCE_S
    missing = _wait_for_end(wait_stored, patience_s) if wait_stored else wait_for_now(folder)
    answer = replace(judge_run(folder, rank, phase=phase), missing=missing)
    if wait_stored and answer.outcome == RUNNING:
        answer = _ended(answer, wait_stored)
    if cell:
        plain = render_summary(answer)
        print(to_json({"text/plain": plain, "text/html": _html(folder, answer)}))
        return
    # At the end of a program, print to stderr: stdout contains the program's own output.
    stream = sys.stderr if closing else sys.stdout
    if as_json or as_html:
        whole = rank is None and phase is None
        print(to_json(answer) if as_json else _html(folder, answer, whole=whole), file=stream)
        return
    color, unicode = shown_in(stream)
    width = width_of(stream)
    drawn = render_summary(
        answer, width=width, color=color, unicode=unicode, calls=calls, epochs=epochs
    )
    # The program may terminate this process on a timeout: ignore SIGTERM while printing, so that
    # the text is printed completely or not at all.
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN) if closing else None
    print(drawn, end="", file=stream, flush=True)
    if before is not None:
        signal.signal(signal.SIGTERM, before)


def _html(folder: RunFolder, answer: Summary, *, whole: bool = True) -> str:
    from otel_mlperf.analysis.page.page_contents import read_course
    from otel_mlperf.report.notebook import render_cell, render_html
    from otel_mlperf.store.table_reader import Store

    if not whole:
        return render_html(answer)
    return render_cell(read_course(Store(folder.path), answer))


def _wait_for_end(journals: list[str], patience_s: float) -> list[str]:
    """Wait until ``journals`` (``JOURNAL:SLOT``) are stored; return messages on missing data."""
    from otel_mlperf.journal.stored_wait import find_losses, wait_until_stored
    from otel_mlperf.store.table_reader import load_duckdb

    load_duckdb()  # before the wait: loads while the agent is still writing
    missing = wait_until_stored(journals, patience_s)
    return missing + find_losses(journals) if missing else []


def _ended(answer: Summary, journals: list[str]) -> Summary:
    """Return the summary with outcome and duration of an ended run, taken from its journals.

    The tables do not contain the end of the run yet.
    """
    from otel_mlperf.analysis.run.run_processes import ENDED
    from otel_mlperf.journal.stored_wait import find_duration

    duration_ns = find_duration(journals)
    if duration_ns is None:
        return answer
    return replace(answer, outcome=ENDED, duration_ns=max(duration_ns, answer.duration_ns))
