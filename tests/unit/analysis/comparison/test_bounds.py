"""A gate stops what is slower, and only that."""

from __future__ import annotations

import pytest

from otel_mlperf.analysis.comparison.bounds import judge_bound, judge_changes, parse_bound
from otel_mlperf.analysis.comparison.comparison import compare_runs
from otel_mlperf.analysis.comparison.run_measures import measure_run
from otel_mlperf.errors import UsageError


@pytest.mark.parametrize(
    ("told", "is_highest", "value"),
    [
        ("train.step.p95=20ms", True, 20e6),
        ("forward<=1.5s", True, 1.5e9),
        ("samples_per_s>=1000", False, 1000.0),
        ("memory_peak_bytes=2GiB", True, 2.0**31),
    ],
)
def test_bounds_are_read_with_their_units(told, is_highest, value):
    """Times become nanoseconds, sizes bytes."""
    bound = parse_bound(told)

    assert (bound.is_highest, bound.value) == (is_highest, value)


@pytest.mark.parametrize("told", ["", "step", "step=", "step=fast", "step=2weeks", "=3ms"])
def test_what_is_no_bound_is_refused(told):
    """With how one is written."""
    with pytest.raises(UsageError, match=r"train\.step\.p95=20ms"):
        parse_bound(told)


@pytest.mark.parametrize(
    ("told", "level"),
    [
        ("train.step.p95=45ms", "ok"),
        ("train.step.p95=35ms", "breach"),
        ("step=45ms", "ok"),
        ("data_wait.max=1ms", "breach"),
        ("data wait.p50=3ms", "ok"),
        ("samples_per_s>=800", "ok"),
        ("samples_per_s>=900", "breach"),
    ],
)
def test_a_bound_is_kept_or_broken(made, told, level):
    """Steps of 38 ms with 32 samples."""
    assert judge_bound(measure_run(made(1)), parse_bound(told)).level == level


def test_a_bound_of_nothing_is_refused(made):
    """It would hold for ever; what there is is said."""
    with pytest.raises(UsageError, match="data_wait"):
        judge_bound(measure_run(made(1)), parse_bound("froward=2ms"))


def test_a_time_without_a_unit_is_refused(made):
    """Tables print milliseconds: 45 would be taken for 45 nanoseconds."""
    with pytest.raises(UsageError, match="needs a unit, such as step=45ms"):
        judge_bound(measure_run(made(1)), parse_bound("step=45"))


def test_a_slower_section_is_a_breach_and_the_others_are_not_told(made):
    """The step is told of in any case."""
    comparison = compare_runs(measure_run(made(1)), measure_run(made(2, backward=1.1)))

    verdicts = judge_changes(comparison)

    assert [(verdict.name, verdict.level) for verdict in verdicts] == [
        ("step", "breach"),
        ("backward", "breach"),
    ]
    assert "backward changed by +10" in verdicts[1].said


def test_equal_runs_and_faster_ones_pass(made):
    """Nothing but the line of the step."""
    for factor in (1.0, 0.8):
        found = compare_runs(measure_run(made(1)), measure_run(made(2, backward=factor)))

        assert [verdict.level for verdict in judge_changes(found)] == ["ok"]


def test_what_is_tolerated_passes(made):
    """Ten percent of the backward pass are five of the step."""
    found = compare_runs(measure_run(made(1)), measure_run(made(2, backward=1.1)))

    assert {verdict.level for verdict in judge_changes(found, tolerance=0.2)} == {"ok"}


def test_too_few_steps_are_said_and_stop_nobody(made):
    """A gate that cannot tell says so."""
    found = compare_runs(measure_run(made(1, count=4)), measure_run(made(2, count=4)))

    assert [verdict.level for verdict in judge_changes(found)] == ["warn"]
