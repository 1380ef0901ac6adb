"""Alternative views of the command ``summary``: by period, and by function."""

from __future__ import annotations


def print_periods(
    run: str, every: str, rank: int | None, phase: str | None, *, as_json: bool
) -> None:
    """Print a run's figures for each period of the length ``every``, such as ``15m``."""
    from functools import partial

    from msgspec.structs import replace

    from otel_mlperf.analysis.periods.period_grid import parse_length
    from otel_mlperf.analysis.periods.periods import read_periods
    from otel_mlperf.cli.output import print_answer
    from otel_mlperf.cli.stored_now import wait_for_now
    from otel_mlperf.report.period_tables import render_periods
    from otel_mlperf.store.run_folders import find_run

    every_ns, folder = parse_length(every), find_run(run)
    missing = wait_for_now(folder)
    answer = replace(read_periods(folder, every_ns, rank, phase), missing=missing)
    print_answer(answer, partial(render_periods, answer), as_json=as_json)


def print_functions(
    run: str, section: str | None, rank: int | None, top: int | None, *, as_json: bool
) -> None:
    """Print the ``top`` functions and lines of profiled sections by time or allocated memory."""
    from functools import partial

    from otel_mlperf.analysis.profiles.hot_spots import find_hot
    from otel_mlperf.cli.output import print_answer
    from otel_mlperf.report.hot_table import TOP, render_hot
    from otel_mlperf.store.run_folders import find_run

    found = find_hot(find_run(run), section, rank)
    print_answer(found, partial(render_hot, found, top=top or TOP), as_json=as_json)
