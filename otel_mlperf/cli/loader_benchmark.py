"""Implementation of ``profile --loader``: a benchmark that finds a data loader's best setting."""

from __future__ import annotations


def benchmark_loader(target: str, batches: int, workers: str | None, *, as_json: bool) -> None:
    """Print throughput, memory, the cost of each part, and the best setting of a data loader.

    Args:
        target: ``MODULE:LOADER``; the module is imported, not run as a program.
        batches: the number of batches in each of five rounds.
        workers: comma-separated numbers of workers to try (default: up to the number of CPUs).
        as_json: print JSON.
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
    with Status() as show_status:
        answer = try_loader(
            target, found, batches=batches, counts=counts, cpus=cpus, tell=show_status
        )
    print_answer(answer, partial(render_loader, answer), as_json=as_json)
