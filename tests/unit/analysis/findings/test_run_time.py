"""Runs with little useful work and late requests are found, and no others."""

from __future__ import annotations

import json
import statistics

import numpy as np
import pytest
from run_folders import MS, START, RunFolderBuilder, S

from otel_mlperf import names
from otel_mlperf.analysis.findings.finding_sources import judge_run
from otel_mlperf.otlp.histogram import ExponentialBuckets
from otel_mlperf.store.run_folders import read_run


def found_in(run, id):
    return [one for one in judge_run(read_run(run.write())).findings if one.id == id]


@pytest.mark.parametrize(
    ("lasts_s", "works_s", "is_low"),
    [(900, 100, True), (900, 600, False), (500, 100, False), (900, 0, False)],
)
def test_goodput(tmp_path, lasts_s, works_s, is_low):
    """Below a half; not of less than ten minutes, and not of a run that makes no steps."""
    run = RunFolderBuilder(tmp_path)
    if works_s:
        run.step(0, 10 * S, {"forward": works_s * S})
    run.section(None, "checkpoint", 200 * S, path="checkpoint", category="checkpoint",
                start_ns=START + (works_s + 20) * S)  # fmt: skip
    run.process(lasts_s * S)

    found = found_in(run, "low_goodput")
    assert bool(found) is is_low
    if is_low:
        (one,) = found
        assert one.summary == (
            "only 11% of the run's time was productive (goodput); the largest loss is other (66%)"
        )
        assert one.action.startswith("Start with the largest loss. ")
        assert one.gain.of == "run"


@pytest.mark.parametrize(
    ("before_s", "works_s", "is_long"),
    [(12, 8, True), (12, 30, False), (4, 2, False)],
)
def test_a_set_up_that_takes_much_of_the_run_is_told(tmp_path, before_s, works_s, is_long):
    """Not a short one, which loads a framework; with the section that takes most of it."""
    run = RunFolderBuilder(tmp_path)
    run.outside("build_table", 7 * S, start_ns=START + 2 * S)
    run.step(0, before_s * S, {"forward": works_s * S})
    run.process((before_s + works_s) * S)

    found = found_in(run, "set_up")
    assert bool(found) is is_long
    if is_long:
        (one,) = found
        assert one.summary == (
            "set-up takes 60% of the run: 12.0 s before the first step, of which 7.0 s are in "
            "build_table"
        )
        assert one.action.endswith(
            "Set OTEL_MLPERF_READINGS=detailed to report the most expensive line of code."
        )
        assert (one.severity, one.where.section) == ("info", "build_table")
        assert (one.gain.low, one.gain.high, one.gain.of) == (0.0, 0.4, "run")


def test_a_set_up_of_which_nothing_is_in_a_section_is_told(tmp_path):
    """As that of an untouched program."""
    run = RunFolderBuilder(tmp_path)
    run.outside("gc.collect", 2 * S, start_ns=START + S)  # says nothing of what is set up
    run.step(0, 12 * S, {"forward": 8 * S})
    run.process(20 * S)

    (one,) = found_in(run, "set_up")
    assert one.summary.endswith("12.0 s before the first step")


def test_the_line_that_takes_most_of_a_set_up_is_named(tmp_path):
    """Where it was looked for: three quarters of what is before the first step."""
    run = RunFolderBuilder(tmp_path)
    run.step(0, 13 * S, {"forward": 17 * S})
    for line, samples in ((9, 90), (31, 30)):
        told = {
            names.CODE_FILE: "train.py", names.CODE_FUNCTION: f"make_{line}",
            names.CODE_LINE: str(line), names.STACK_CALL: "hash", names.STACK_PACKAGE: "",
            names.STACK_WITHIN: "",
        }  # fmt: skip
        run.row(
            "readings", rank=0, restart=0, name=names.STACK_SAMPLES_SET_UP.name,
            labels=json.dumps(told), time_ns=START + 12 * S, value=float(samples),
        )  # fmt: skip
    run.process(30 * S)

    (one,) = found_in(run, "set_up")
    assert one.summary.endswith("75% of the set-up likely in hash() at train.py:9 in make_9")
    assert "detailed" not in one.action
    assert one.where.section == "hash() at train.py:9 in make_9"
    assert one.gain.high == pytest.approx(13 / 30 * 0.75)


def request(run, values_ns, name, category="request", bound_s=0.05):
    buckets = ExponentialBuckets()
    buckets.record(np.array(values_ns) / 1e9)
    run.row(
        "durations", rank=0, restart=0, phase="", name=name, category=category, path=name,
        beside=False, in_step=False, bound_s=bound_s, count=len(values_ns), errors=0,
        within=sum(value <= bound_s * 1e9 for value in values_ns) if bound_s else 0,
        sum_ns=sum(values_ns), min_ns=min(values_ns), max_ns=max(values_ns),
        spread=float(statistics.pvariance(values_ns)) * len(values_ns), scale=buckets.scale,
        zeros=buckets.zero_count, first_bucket=buckets.offset, counts=json.dumps(buckets.counts),
    )  # fmt: skip


def test_late_requests_are_found_by_name(tmp_path):
    """A tenth is late of one kind, a fiftieth of another; few, without a bound, or no requests."""
    run = RunFolderBuilder(tmp_path)
    run.process(10 * S)
    request(run, [MS] * 90 + [80 * MS] * 10, "chat")
    request(run, [MS] * 98 + [80 * MS] * 2, "predict")
    request(run, [80 * MS] * 10, "rare")
    request(run, [80 * MS] * 100, "free", bound_s=None)
    request(run, [80 * MS] * 100, "lookup", category="other")

    (found,) = found_in(run, "requests_late")
    assert found.summary == "too few requests named chat meet their time limit: 90%"
    assert found.where.section == "chat"
    assert found.evidence["within"] == 0.9
    assert found.evidence["requests"] == 100
