"""A comparison is readable, and its page shows the same."""

from __future__ import annotations

import msgspec
import numpy as np
from guides import DOCS
from run_folders import MS, RunFolderBuilder, S

from otel_mlperf.analysis.comparison.comparison import compare_runs
from otel_mlperf.analysis.comparison.run_measures import measure_run
from otel_mlperf.analysis.steps.mean_estimates import Estimate
from otel_mlperf.report.comparison_table import render_comparison
from otel_mlperf.store.run_folders import read_run
from otel_mlperf.terminal_lines import columns


def measured(tmp_path, number, backward, **params):
    """A made run of 400 steps whose times lie four percent apart."""
    run = RunFolderBuilder(tmp_path, "digits", f"{number:x}" * 16, params=params)
    rng = np.random.default_rng(number)
    usual = {"data.load": 1.8, "forward": 2.3, "backward": backward, "optimizer": 0.6}
    for n in range(400):
        spread = 1 + 0.04 * rng.standard_normal(len(usual))
        parts = {
            name: int(ms * MS * by) for (name, ms), by in zip(usual.items(), spread, strict=True)
        }
        run.step(n, n * 10 * MS, parts, own=MS // 5, samples=32, kept="profiled" if n < 3 else None)
    run.process(5 * S)
    return measure_run(read_run(run.write()))


def test_the_page_shows_what_the_command_says(tmp_path):
    """The two runs of docs/comparing.md."""
    before = measured(tmp_path, 5, 2.3, width=64)
    after = measured(tmp_path, 7, 2.6, width=72)

    said = render_comparison(compare_runs(before, after))

    assert said in (DOCS / "comparing.md").read_text()


def test_no_line_is_wider_than_the_terminal(tmp_path):
    """Whatever parameters are called."""
    before = measured(tmp_path, 5, 2.3)
    after = measured(tmp_path, 7, 2.6, **{f"parameter_{n}": "x" * 50 for n in range(30)})

    for width in (70, 80, 120):
        said = render_comparison(compare_runs(before, after), width=width)
        assert max(map(columns, said.splitlines())) <= width


def test_a_difference_that_is_not_that_of_the_means_is_marked(tmp_path):
    """A stall of one run decides its mean: the usual step is judged, and the line says so."""
    before, after = measured(tmp_path, 5, 2.3), measured(tmp_path, 7, 2.6)
    times = [
        msgspec.structs.replace(time, mean_ns=Estimate(9e6, None, 1.0)) for time in after.times
    ]

    comparison = compare_runs(before, msgspec.structs.replace(after, times=times))

    assert "slower (trimmed mean)" in render_comparison(comparison).splitlines()[2]
    assert "(trimmed mean)" not in render_comparison(compare_runs(before, before))


def test_a_number_that_one_run_lacks_is_not_compared(tmp_path):
    """Unknown is not zero."""
    before, after = measured(tmp_path, 5, 2.3), measured(tmp_path, 7, 2.3)
    after = msgspec.structs.replace(after, numbers=after.numbers | {"cpus": 2.0})

    assert "CPUs used" not in render_comparison(compare_runs(before, after))
