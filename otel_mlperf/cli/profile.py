"""``otel-mlperf profile``: profiler window in a running job, or benchmark of a data loader."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from otel_mlperf.cli.arguments import JsonOption, RunArgument  # noqa: TC001 - typer reads them
from otel_mlperf.cli.output import echo
from otel_mlperf.errors import NotRunning, UsageError
from otel_mlperf.journal.profiler_windows import FOLDER, MAX_STEPS
from otel_mlperf.live_profiling import (
    find_ranks,
    has_agent,
    request_windows,
    stop_ranks,
    take_back,
    wait_for_trace,
    wait_until_read,
)
from otel_mlperf.quantities import plural

if TYPE_CHECKING:
    from otel_mlperf.live_profiling import PendingRequest
    from otel_mlperf.store.run_folders import RunFolder


def profile(  # noqa: PLR0913, PLR0917 - one for each option
    run: RunArgument = "latest",
    steps: Annotated[
        int, typer.Option("--steps", min=1, max=MAX_STEPS, help="Number of steps to record.")
    ] = 3,
    rank: Annotated[
        list[int] | None,
        typer.Option("--rank", help="Only this rank (default: all); may be repeated."),
    ] = None,
    wait: Annotated[
        bool | None,
        typer.Option(
            "--wait/--no-wait",
            help="Wait until the traces are read (default: yes on a terminal).",
        ),
    ] = None,
    stop: Annotated[
        bool, typer.Option("--stop", help="End the requested window early and keep its trace.")
    ] = False,
    loader: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:LOADER",
            help="Benchmark a data loader instead: a module or file and the loader in it, or a "
            "function that makes it, e.g. train.py:loader.",
        ),
    ] = None,
    batches: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="With --loader: number of batches per round (5 rounds)."
        ),
    ] = 20,
    workers: Annotated[
        str | None,
        typer.Option(
            metavar="N,N…",
            help="With --loader: numbers of workers to try (default: 0, 1, 2, 4 … up to the number "
            "of CPUs, and more while that helps).",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Profile the next steps of a live run, or benchmark a data loader.

    One warm-up step runs with the profiler on; the steps after it are recorded. Without --rank
    every rank on this node is profiled. Ctrl-C while waiting cancels profiling that has not
    started.

    --loader reports throughput, memory, the cost of each part and the best number of workers of a
    data loader. Its module is imported, not run as a program: code below
    `if __name__ == "__main__"` is skipped. An iterable that is not a DataLoader is timed as it is.
    """
    if loader is not None:
        from otel_mlperf.cli.loader_benchmark import benchmark_loader

        benchmark_loader(loader, batches, workers, as_json=as_json)
        return
    if as_json or workers is not None:
        raise UsageError("--json and --workers require --loader")
    _profile_steps(run, steps, rank, wait=wait, stop=stop)


def _profile_steps(
    run: str, steps: int, rank: list[int] | None, *, wait: bool | None, stop: bool
) -> None:
    from otel_mlperf.store.run_folders import find_run

    chosen = find_run(run)
    journals = find_ranks(chosen, rank or [])
    if stop:
        requested = []
        for each in stop_ranks(journals):
            echo(f"rank {each.rank}: {each.words}")
            requested += [each.asked] if each.asked else []
    else:
        requested = request_windows(journals, steps)
        for window in requested:
            print(
                f"rank {window.rank}: requested a window of {plural(steps, 'step')} after the "
                "next step"
            )
        echo(f"traces are written to {chosen.path / FOLDER}")
    if wait if wait is not None else sys.stdout.isatty():
        _wait(chosen, requested)


def _wait(run: RunFolder, requested: list[PendingRequest]) -> None:
    traces: dict[int, Path] = {}
    try:
        for window in requested:
            trace = wait_for_trace(run, window)
            echo(f"rank {window.rank}: {trace}")
            if isinstance(trace, Path):
                traces[window.rank] = trace
    except KeyboardInterrupt:
        # Withdraw the requests: windows that nobody waits for would only slow down the job.
        _withdraw(run, requested)
        raise
    is_read = has_agent(requested)
    if unread := wait_until_read(run, traces.values(), is_hopeful=is_read):
        how = "still being read" if is_read else "not read by an agent"
        print(f"{plural(len(unread), 'trace')} {how}; show the result later with: "
              f"otel-mlperf kernels {run.short_id}")  # fmt: skip
    if lost := [str(window.rank) for window in requested if window.rank not in traces]:
        raise NotRunning(f"profile: no trace from rank {', '.join(lost)}")


def _withdraw(run: RunFolder, requested: list[PendingRequest]) -> None:
    for window in requested:
        state = take_back(window)
        if state == "taken back":
            print(f"rank {window.rank}: request withdrawn", file=sys.stderr)
        elif state == "goes on":
            goes_on = f"the window of {plural(window.steps, 'step')} continues"
            stop = f"to end the window: otel-mlperf profile {run.short_id} --stop"
            print(f"rank {window.rank}: {goes_on}; {stop}", file=sys.stderr)
