"""A warning that held during a run becomes a finding of it, by the run folder's data."""

from __future__ import annotations

import json
import random
from itertools import accumulate

import pytest
from run_folders import START, RunFolderBuilder, S

from otel_mlperf import names
from otel_mlperf.analysis.findings.ended_rules import (
    _ELSEWHERE,
    _judge,
    _read_extremes,
    find_ended_rules,
)
from otel_mlperf.analysis.findings.finding_sources import judge_run
from otel_mlperf.analysis.findings.run_numbers import RunNumbers
from otel_mlperf.analysis.summary.summary import summarize
from otel_mlperf.findings.finding import Where
from otel_mlperf.findings.finding_table import RULES
from otel_mlperf.store.run_folders import read_run
from otel_mlperf.store.table_reader import Store

GPU = {names.HW_ID: "GPU-1", names.HW_NAME: "gpu0"}


def read(run, metric, values, labels=None, rank=0):
    """Values of a metric, one every five seconds."""
    for at, value in enumerate(values):
        row = {"time_ns": START + 5 * at * S, "value": float(value), "rank": rank, "restart": 0}
        run.row("readings", name=metric.name, labels=json.dumps(labels or {}), **row)


def judged(run):
    run.process(1000 * S)
    return judge_run(read_run(run.write())).findings


def ids(run):
    return [one.id for one in judged(run)]


def memory(runs, used, rank=0):
    run = RunFolderBuilder(runs)
    read(run, names.CGROUP_WORKING_SET, used, rank=rank)
    read(run, names.CGROUP_MEMORY_LIMIT, [1000] * len(used), rank=rank)
    return run


def test_a_level_that_held_for_its_time(tmp_path):
    """The worst value, for how long it held at most, and on which rank."""
    calm = [500] * 4
    (found,) = judged(memory(tmp_path, [*calm, 910, 950, 940, *calm, 999, *calm], rank=3))

    assert (found.id, found.severity) == ("memory_near_limit", "critical")
    assert found.summary == "the job uses 95% of its memory limit (for 10 s)"
    assert found.evidence == {"value": 0.95, "threshold": 0.9, "held_s": 10.0}
    assert found.where == Where(rank=3)


@pytest.mark.parametrize("used", [[500, 999, 500], [500, 910, 910, 500], [900] * 9, [999]])
def test_what_passes_is_no_finding(tmp_path, used):
    """Neither for less than its time nor at the threshold; one reading alone decides nothing."""
    assert ids(memory(tmp_path, used)) == []


def test_a_short_run_is_judged_by_all_that_was_read(tmp_path):
    """A run that is over before the rule's time, and in which it held throughout."""
    assert ids(memory(tmp_path, [950, 960])) == ["memory_near_limit"]


def test_hours_are_said_as_minutes(tmp_path):
    """How long it held at most: whether it was a moment or the whole run."""
    (found,) = judged(memory(tmp_path, [950] * 121))

    assert found.summary == "the job uses 95% of its memory limit (for 10 min)"


def test_what_is_below_counts_by_its_least(tmp_path):
    """The node's own readings are of no rank."""
    run = RunFolderBuilder(tmp_path)
    read(run, names.SYSTEM_MEMORY_AVAILABLE, [40, 20, 30, 900], rank=None)
    read(run, names.SYSTEM_MEMORY_LIMIT, [1000] * 4, rank=None)
    (found,) = judged(run)

    assert found.id == "host_memory_near_limit"
    assert (found.evidence["value"], found.where) == (0.02, Where())


def test_each_gpu_is_judged_for_itself(tmp_path):
    """By the labels of the rule, whatever other labels a series has."""
    run = RunFolderBuilder(tmp_path)
    for number, used in enumerate((980, 500)):
        gpu = {names.HW_ID: f"GPU-{number}", names.HW_NAME: f"gpu{number}"}
        read(run, names.GPU_MEMORY_USAGE, [used] * 20, gpu)
        read(run, names.GPU_MEMORY_LIMIT, [1000] * 20, gpu | {names.HW_MODEL: "H100"})
    (found,) = judged(run)

    assert found.id == "gpu_memory_near_limit"
    assert found.where == Where(rank=0, device="gpu0")
    assert found.summary == "98% of the memory of gpu0 is in use (for 95 s)"


def test_only_the_reasons_that_slow_a_gpu_down(tmp_path):
    """A power cap is usual."""
    run = RunFolderBuilder(tmp_path)
    read(run, names.THROTTLE, [1] * 5, GPU | {names.THROTTLE_REASON: "sw_power_cap"})
    read(run, names.THROTTLE, [1] * 5, GPU | {names.THROTTLE_REASON: "hw_slowdown"})
    (found,) = judged(run)

    assert found.summary == "gpu0 is throttled: hw_slowdown (for 20 s)"


def test_a_count_that_grew(tmp_path):
    """From the first reading on: what a container had before is not of this run."""
    run = RunFolderBuilder(tmp_path)
    read(run, names.CGROUP_OOM_KILLS, [7, 7, 8, 8])
    (found,) = judged(run)

    assert (found.id, found.evidence["value"]) == ("killed_for_memory", 1.0)
    assert found.summary == "the kernel killed a process of the job because memory ran out"


@pytest.mark.parametrize("counts", [[7, 7, 7], [7, 0, 0], [7]])
def test_a_count_that_did_not_grow(tmp_path, counts):
    """Nor one that began anew."""
    run = RunFolderBuilder(tmp_path)
    read(run, names.CGROUP_OOM_KILLS, counts)

    assert ids(run) == []


def quota(runs, throttled, periods):
    run = RunFolderBuilder(runs)
    read(run, names.CGROUP_THROTTLED_PERIODS, throttled)
    read(run, names.CGROUP_PERIODS, periods)
    return run


def test_a_ratio_of_growths_over_its_time(tmp_path):
    """The worst minute counts, not the mean of the run, nor a moment of it."""
    calm = list(range(0, 2000, 50))  # one period of fifty for eight minutes
    minute = [0] * 14 + [20 * n for n in range(12)] + [220] * 14
    (found,) = judged(quota(tmp_path, minute, calm))

    assert found.id == "cpu_throttled"
    assert 0.25 < found.evidence["value"] < 0.4
    assert found.summary.endswith(" of its periods (within 60 s)")


def test_what_a_quota_costs(tmp_path):
    """At most the half of the time in which the main thread had no CPU."""
    run = quota(tmp_path, list(range(0, 1600, 40)), list(range(0, 2000, 50)))
    for n in range(95):
        run.step(n, n * 2 * S, {"forward": 2 * S})
    halves = [2.5 * at for at in range(40)]
    for metric in (names.MAIN_THREAD_CPU_TIME, names.MAIN_THREAD_RUN_DELAY):
        read(run, metric, halves)
    read(run, names.CGROUP_CPU_LIMIT, [1] * 40)

    (found,) = (one for one in judged(run) if one.id == "cpu_throttled")
    assert (found.gain.low, found.gain.high) == pytest.approx((0.25, 0.5))


def test_a_moment_of_a_ratio_is_no_finding(tmp_path):
    """For less than half of its time nobody can say."""
    throttled = [0] * 14 + [40] * 26

    assert ids(quota(tmp_path, throttled, list(range(0, 2000, 50)))) == []


def test_every_rule_is_asked(tmp_path):
    """A run with readings of every rule's metrics, all of them calm, has no finding."""
    assert ids(calm(tmp_path)) == []


class Asked(Store):
    """A run's tables that count what they are asked."""

    count = 0

    def rows(self, sql, **values):
        self.count += 1
        return super().rows(sql, **values)


def calm(runs):
    """Readings of every rule's metrics, none of them near its threshold."""
    run = RunFolderBuilder(runs)
    parts = [part for rule in RULES for part in (rule.measured, rule.per) if part]
    well = {names.TEMPERATURE_MARGIN.name: 30.0, names.SYSTEM_MEMORY_AVAILABLE.name: 900.0}
    for metric, where in sorted({(part.metric, part.where) for part in parts}):
        labels = {label: values[0] for label, values in where} | GPU
        ratio = 1000.0 if metric.name.endswith("limit") else 0.0
        read(run, metric, [well.get(metric.name, ratio)] * 9, labels)
    return run


def test_a_calm_run_is_asked_once(tmp_path):
    """The extremes of all series rule every rule out; one that may have held is looked at."""
    run = calm(tmp_path)
    run.process(1000 * S)
    folder = read_run(run.write())
    store = Asked(folder.path)

    assert find_ended_rules(RunNumbers(summarize(folder), store)) == []
    assert store.count == 1


@pytest.mark.parametrize("seed", range(12))
def test_no_rule_that_held_is_ruled_out(tmp_path, seed):
    """Values about every threshold, of several processes: judging all rules finds no more."""
    chosen, run = random.Random(seed), RunFolderBuilder(tmp_path)
    parts = [part for rule in RULES for part in (rule.measured, rule.per) if part]
    for metric, where in sorted({(part.metric, part.where) for part in parts}):
        for rank in (0, 1, None):
            labels = {label: chosen.choice(values) for label, values in where} | GPU
            most = chosen.choice([0, 1, 5, 1000])
            values = [chosen.choice([0.0, 0.04, 0.26, 0.91, 0.98, 1.0]) * most for _ in range(30)]
            is_total = metric.instrument == "counter"
            read(run, metric, accumulate(values) if is_total else values, labels, rank)
    run.process(1000 * S)
    folder = read_run(run.write())
    numbers = RunNumbers(summarize(folder), Store(folder.path))
    found = find_ended_rules(numbers)

    rules = [rule for rule in RULES if rule.of_ended and rule.id not in _ELSEWHERE]
    extremes = _read_extremes(numbers.store, rules)
    assert [one.evidence for one in found] == [
        {"value": held.value, "threshold": rule.threshold, "held_s": held.held_s}
        for rule in rules
        for held in _judge(numbers.store, rule, extremes)
    ]
    assert len({one.id for one in found}) > 2
