"""Each rule of the table warns when it should, once, and not otherwise."""

from __future__ import annotations

import pytest

from otel_mlperf import names
from otel_mlperf.agent.derivation.rule_evaluator import RuleEvaluator
from otel_mlperf.findings.finding_table import RULES
from otel_mlperf.journal.bulletin import Reading

GPU = {names.HW_ID: "GPU-1", names.HW_NAME: "gpu0"}
RANK = "0-1-1.journal"


def of(metric, value, labels=None, journal=RANK):
    return Reading(journal, metric.name, labels or {}, value)


def looked(*moments):
    """Names of the warnings at each moment: seconds, and what was read then."""
    watch, found = RuleEvaluator(), []
    for now_s, readings in moments:
        found.append([one.rule for one in watch.look(readings, now_s, 10**18)])
    return found


def levels(before, after):
    """A condition that begins to hold at 100 s and is looked at every five."""
    return [(0, before), *((100 + 5 * n, after) for n in range(20))]


def memory(used):
    return [of(names.CGROUP_WORKING_SET, used), of(names.CGROUP_MEMORY_LIMIT, 1000)]


def host(available):
    return [
        of(names.SYSTEM_MEMORY_AVAILABLE, available, journal=""),
        of(names.SYSTEM_MEMORY_LIMIT, 1000, journal=""),
    ]


def gpu_memory(used):
    limit = of(names.GPU_MEMORY_LIMIT, 1000, GPU | {names.HW_MODEL: "H100"})
    return [of(names.GPU_MEMORY_USAGE, used, GPU), limit]


def throttled(value, reason="hw_slowdown"):
    return [of(names.THROTTLE, value, GPU | {names.THROTTLE_REASON: reason})]


def busy(share):
    """Of a GPU whose encoder has nothing to do."""
    tasks = {"general": share, "encoder": 0.0}
    return [of(names.GPU_UTILIZATION, tasks[t], GPU | {names.HW_GPU_TASK: t}) for t in tasks]


def disk(share):
    return [of(names.FILESYSTEM_UTILIZATION, share, {names.MOUNTPOINT: "/data"}, "")]


@pytest.mark.parametrize(
    ("rule", "calm", "bad", "for_s"),
    [
        ("MemoryNearLimit", memory(900), memory(901), 10),
        ("HostMemoryNearLimit", host(50), host(49), 10),
        ("DiskFull", disk(0.95), disk(0.96), 0),
        ("GpuThrottled", throttled(0), throttled(1), 10),
        ("GpuHot", [of(names.TEMPERATURE_MARGIN, 3, GPU)],
         [of(names.TEMPERATURE_MARGIN, 2, GPU)], 10),
        ("GpuMemoryNearLimit", gpu_memory(970), gpu_memory(971), 60),
        ("GpuUnderused", busy(0.4), busy(0.3), 60),
    ],
)  # fmt: skip
def test_levels(rule, calm, bad, for_s):
    """What is compared as it is warns once it has held for its time, and at its threshold not."""
    assert [one for moment in looked(*levels(calm, calm)) for one in moment] == []

    found = looked(*levels(calm, bad))
    first = next(n for n, names_ in enumerate(found) if names_) - 1
    assert first * 5 == for_s
    assert found[-1] == [rule]


def counted(metric, labels, per=None):
    """A counter that grows by one at 200 s, beside one that grows by ten a second."""
    moments = []
    for now_s in range(0, 400, 5):
        readings = [of(metric, 7 + (now_s >= 200), labels)]
        if per is not None:
            readings.append(of(per, now_s * 10))
        moments.append((now_s, readings))
    return moments


@pytest.mark.parametrize(
    ("rule", "metric", "labels"),
    [
        ("ProcessKilledForMemory", names.CGROUP_OOM_KILLS, {}),
        ("GpuMemoryRetries", names.CUDA_RETRIES, {names.DEVICE_INDEX: "0"}),
        ("GpuMemoryErrors", names.HW_ERRORS, GPU | {names.ERROR_TYPE: "uncorrected"}),
        ("GpuXid", names.HW_ERRORS, GPU | {names.ERROR_TYPE: "xid"}),
        ("GpuLost", names.DEVICE_LOST, GPU),
        ("TelemetryLost", names.ITEMS, {names.OUTCOME: "lost"}),
    ],
)
def test_growth(rule, metric, labels):
    """What is counted warns when it grows; what was there before the first look is nothing."""
    moments = counted(metric, labels)
    found = looked(*moments)

    assert {now_s for (now_s, _), names_ in zip(moments, found, strict=True) if names_} == set(
        range(200, 400, 5)
    )
    assert found[-1] == [rule]


@pytest.mark.parametrize(
    ("rule", "measured", "per", "threshold"),
    [
        ("CpuThrottled", (names.CGROUP_THROTTLED_PERIODS, {}), (names.CGROUP_PERIODS, {}), 0.25),
        ("DataWait",
         (names.SECTION_SELF_TIME,
          {names.SECTION_NAME: "data.load", names.SECTION_CATEGORY: "data_loading",
           names.ML_PHASE: "train"}),
         (names.STEP_DURATION, {names.ML_PHASE: "train"}), 0.3),
        ("GpuIdle", (names.STEP_GPU_IDLE, {}), (names.STEP_GPU, {names.PACED_BY: "host"}), 0.3),
    ],
)  # fmt: skip
@pytest.mark.parametrize("more", [-0.01, 0.01])
def test_share_of_growth(rule, measured, per, threshold, more):
    """A share of what two counters grow by is judged over its time, from half of it on."""
    share = threshold + more
    moments = [
        (now_s, [of(*_pair(measured, 50 + share * now_s)), of(*_pair(per, 1000 + now_s))])
        for now_s in range(0, 90, 5)
    ]
    found = looked(*moments)

    assert [now_s for (now_s, _), names_ in zip(moments, found, strict=True) if names_] == (
        list(range(30, 90, 5)) if more > 0 else []
    )
    assert found[-1] == ([rule] if more > 0 else [])


def _pair(part, value):
    metric, labels = part
    return metric, value, labels


def test_other_series_do_not_count():
    """Series whose labels a rule does not ask for are no reason to warn."""
    readings = [
        *throttled(1, "gpu_idle"),
        of(names.HW_ERRORS, 5, GPU | {names.ERROR_TYPE: "corrected"}),
        of(names.SECTION_SELF_TIME, 5, {names.SECTION_CATEGORY: "forward"}),
    ]

    assert looked(*((n * 10, readings) for n in range(30)))[-1] == []


def test_counters_that_begin_anew():
    """A counter that starts again from zero has not grown."""
    moments = [(n * 5, [of(names.CGROUP_OOM_KILLS, 9 if n < 10 else 0)]) for n in range(20)]

    assert looked(*moments)[-1] == []


def test_one_that_comes_and_goes_is_one_warning():
    """A warning stays the same until its condition has not held for half a minute."""
    watch, seen = RuleEvaluator(), []
    for now_s in range(0, 200, 5):
        is_full = now_s < 60 and now_s % 20 < 10
        seen += watch.look(disk(0.99 if is_full else 0.5), now_s, now_s * 10**9)
    last_s = max(now_s for now_s in range(60) if now_s % 20 < 10 and now_s % 5 == 0)

    assert {one.since_unix_ns for one in seen} == {0}
    assert len(seen) == (last_s + 30) // 5


def test_words_and_labels():
    """A warning says what is the case, of what, how much, and what to do."""
    watch = RuleEvaluator()
    for now_s in (0, 5, 10):
        found = watch.look(throttled(1, "sw_thermal_slowdown"), now_s, 10**18 + now_s * 10**9)
    (one,) = found

    assert one.summary == "gpu0 is throttled: sw_thermal_slowdown"
    assert one.labels == GPU | {names.THROTTLE_REASON: "sw_thermal_slowdown"}
    assert (one.journal, one.since_unix_ns) == (RANK, 10**18)
    assert "cooling" in one.action
    watch.look(disk(0.987), 15, 10**18)
    assert watch.look(disk(0.987), 20, 10**18)[-1].summary == (
        "the disk of the run folder (/data) is 99% full"
    )


def test_what_held_says_since_when_how_far_and_how_bad():
    """A warning that comes, gets worse and better, goes and comes again within half a minute."""
    watch, held = RuleEvaluator(), []
    for now_s, used in enumerate((950, 990, 920, 500, 910, 500, 500, 500, 500, 500, 500, 950)):
        watch.look(memory(used), 5 * now_s, 10**18 + 5 * now_s * 10**9)
        held.append([(one.id, one.start_unix_ns - 10**18, one.end_unix_ns - 10**18, one.value)
                     for one in watch.held])  # fmt: skip
        assert {one.threshold for one in watch.held} <= {0.9}

    assert held[:5] == [[], [], [("memory_near_limit", 0, 10 * 10**9, 0.99)], [],
                        [("memory_near_limit", 0, 20 * 10**9, 0.99)]]  # fmt: skip
    assert held[5:] == [[]] * 7


def test_the_worst_of_what_must_not_fall_is_the_least():
    """And what passed before a warning began counts for none of it."""
    watch = RuleEvaluator()
    for now_s, available in enumerate((10, 900, 40, 30, 45, 49)):
        watch.look(host(available), 5 * now_s, 10**18)

    assert [(one.id, one.journal, one.value) for one in watch.held] == [
        ("host_memory_near_limit", "", 0.03)
    ]


def test_ranks_are_judged_one_by_one():
    """One rank's memory is not the other's."""
    both = [*memory(100), of(names.CGROUP_WORKING_SET, 990, journal="1"),
            of(names.CGROUP_MEMORY_LIMIT, 1000, journal="1")]  # fmt: skip
    watch = RuleEvaluator()
    found = [watch.look(both, now_s, 10**18) for now_s in (0, 10)][-1]

    assert [one.journal for one in found] == ["1"]


def test_every_rule_can_be_told():
    """Each rule names metrics of the vocabulary, their labels, and is a sentence when filled in."""
    assert len({rule.name for rule in RULES}) == len(RULES)
    for rule in RULES:
        for part in filter(None, (rule.measured, rule.per)):
            assert part.metric in names.METRICS
            assert {label for label, _ in part.where} <= set(part.metric.labels), rule.name
        assert set(rule.by) <= set(rule.measured.metric.labels) | {names.HW_NAME}, rule.name
        words = {label.replace(".", "_"): "x" for label in rule.by}
        assert "{" not in rule.summary.format(value=0.5, **words)
        assert rule.action.endswith(".")
        assert not rule.summary.endswith(".")
        assert rule.over_s == 0 or rule.for_s == 0
