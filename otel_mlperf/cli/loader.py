"""``otel-mlperf loader``: benchmark of a data loader, and its best setting."""

from __future__ import annotations

from typing import Annotated

import typer

from otel_mlperf.cli.arguments import JsonOption  # noqa: TC001 - typer reads it


def loader(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:LOADER",
            help="A module or file and the loader in it, or a function that makes it: "
            "`train.py:loader`.",
        ),
    ],
    batches: Annotated[
        int, typer.Option(metavar="N", min=1, help="Batches in each of five rounds.")
    ] = 20,
    workers: Annotated[
        str | None,
        typer.Option(
            metavar="N,N…",
            help="Numbers of workers to try (default: 0, 1, 2, 4 … up to the number of CPUs, "
            "and more while that helps).",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Benchmark a data loader: throughput, memory, the cost of each part, and the best setting.

    The module is imported, not run as a program: code below `if __name__ == "__main__"` is skipped.
    A DataLoader is tried with several numbers of workers; any other iterable of batches is timed
    without changes.
    """
    from functools import partial
    from pathlib import Path

    from otel_mlperf.cli.output import Status, print_answer
    from otel_mlperf.loader_trial.loader_settings import parse_counts
    from otel_mlperf.loader_trial.loaders import find_loader
    from otel_mlperf.loader_trial.trial import try_loader
    from otel_mlperf.loader_trial.trial_page import render_loader
    from otel_mlperf.portability import usable_cpus

    counts = None if workers is None else parse_counts(workers)
    found, cpus = find_loader(target, Path.cwd()), usable_cpus()
    with Status() as tell:
        answer = try_loader(target, found, batches=batches, counts=counts, cpus=cpus, tell=tell)
    print_answer(answer, partial(render_loader, answer), as_json=as_json)
