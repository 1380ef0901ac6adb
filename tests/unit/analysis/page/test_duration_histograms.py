"""Histograms of durations contain each step and call once, between edges that contain it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from run_folders import MS, RunFolderBuilder

from otel_mlperf.analysis.page.duration_histograms import read_histograms
from otel_mlperf.analysis.steps.step_shares import read_steps
from otel_mlperf.otlp.histogram import ExponentialBuckets
from otel_mlperf.store.table_reader import Store


def histograms_of(run, *, has_warm_up=False):
    """Those of a folder that is being built."""
    store = Store(run.write())
    return read_histograms(store, read_steps(store, "train", None), has_warm_up=has_warm_up)


def calls(run, name, values_ns, **place):
    """One stored part of the calls of a section."""
    buckets = ExponentialBuckets()
    buckets.record(np.array(values_ns) / 1e9)
    run.row("durations", **{
        "rank": 0, "restart": 0, "phase": "", "name": name, "category": "other", "path": name,
        "beside": False, "in_step": False, "bound_s": None, "count": len(values_ns), "errors": 0,
        "within": 0, "sum_ns": sum(values_ns), "min_ns": min(values_ns), "max_ns": max(values_ns),
        "spread": 0.0, "scale": buckets.scale, "zeros": 0, "first_bucket": buckets.offset,
        "counts": json.dumps(buckets.counts),
    } | place)  # fmt: skip


def counted(histogram, values_ns):
    """The same histogram, counted one by one."""
    return np.histogram(values_ns, bins=histogram.edges_ns)[0].tolist()


def test_steps_are_those_of_the_figures(tmp_path):
    """On all ranks, without the warm-up and those that failed."""
    run, took = RunFolderBuilder(tmp_path), []
    for n in range(60):
        spent = (500 if n == 0 else 10 + n % 7) * MS + n
        run.step(n, n * 100 * MS, {"forward": spent}, error=n == 5)
        took += [spent] * (n not in (0, 5))

    (steps,) = histograms_of(run, has_warm_up=True)
    assert (steps.name, sum(steps.counts)) == ("step", 58)
    assert steps.counts == counted(steps, took)


def test_parts_of_a_section_are_one_histogram(tmp_path):
    """Most time first, each bar with the calls between its edges; what is seldom has none."""
    run = RunFolderBuilder(tmp_path)
    run.step(0, 0, {"forward": MS})
    fast, slow = [2 * MS + n for n in range(50)], [300 * MS] * 3
    calls(run, "load", fast)
    calls(run, "load", slow, rank=1)
    calls(run, "forward", [MS + n for n in range(20)], in_step=True, phase="train", path="")
    calls(run, "seldom", [MS] * 3)

    load, forward = histograms_of(run)
    assert (load.name, load.place, load.counts) == ("load", "load", counted(load, fast + slow))
    assert len(load.counts) <= 40
    assert load.edges_ns[0] < 2 * MS < 300 * MS <= load.edges_ns[-1]
    assert load.edges_ns[1] / load.edges_ns[0] == pytest.approx(
        load.edges_ns[-1] / load.edges_ns[-2]
    )
    assert (forward.place, forward.in_step, sum(forward.counts)) == ("train", True, 20)
