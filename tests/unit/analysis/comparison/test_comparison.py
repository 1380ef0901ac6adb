"""What became slower is named, and nothing else."""

from __future__ import annotations

import os

import msgspec
import numpy as np
import pytest
from run_folders import MS, RunFolderBuilder, S

from otel_mlperf.analysis.comparison.comparison import compare_runs
from otel_mlperf.analysis.comparison.comparison_shapes import KernelMeasures
from otel_mlperf.analysis.comparison.run_measures import measure_run, read_baseline
from otel_mlperf.errors import StoreError
from otel_mlperf.store.run_folders import read_run


def words(comparison):
    """The word of each row."""
    return {time.name: time.word for time in comparison.times}


def test_only_the_section_that_became_slower_is_called_so(made):
    """Five percent of the backward pass, and so of the step; the others are the same."""
    before, after = measure_run(made(1)), measure_run(made(2, backward=1.05))

    found = compare_runs(before, after)

    assert words(found) == {
        "step": "slower",
        "data wait": "same",
        "forward": "same",
        "backward": "slower",
        "optimizer": "same",
        "untracked": "same",
    }
    backward = next(time for time in found.times if time.name == "backward")
    assert backward.mean.low < 0.05 < backward.mean.high
    assert backward.share == pytest.approx(1 / 38, rel=0.2)


def test_sections_add_up_to_the_step(made):
    """In each run, and their differences to that of the step."""
    found = compare_runs(measure_run(made(1, rare=7)), measure_run(made(2, forward=1.2, rare=9)))

    step, *sections = found.times
    for which in ("before_ns", "after_ns", "share"):
        assert sum(getattr(time, which) for time in sections) == pytest.approx(getattr(step, which))


def test_equal_runs_of_several_ranks_are_the_same(made):
    """A step of two ranks counts once."""
    before, after = measure_run(made(1, ranks=2)), measure_run(made(2, ranks=2))

    found = compare_runs(before, after)

    assert (before.steps, after.steps) == (300, 300)
    assert set(words(found).values()) == {"same"}


@pytest.mark.slow
def test_one_false_alarm_in_a_hundred_equal_pairs_at_most(made):
    """1,000 pairs, each drawn in blocks from the steps of one run: none of their rows differs."""
    from otel_mlperf.analysis.comparison import run_measures

    run = measure_run(made(1, count=400))
    rng = np.random.default_rng(5)
    alarms = 0
    shapes = {"forward": 10.0, "backward": 20.0, "optimizer": 5.0}
    pool = {name: ms * MS * (1 + 0.05 * rng.standard_normal(2_000)) for name, ms in shapes.items()}

    def drawn():
        at = (rng.integers(0, 1_990, 30)[:, None] + np.arange(10)).ravel()
        times = {name: values[at] for name, values in pool.items()}
        step = sum(times.values())
        rows = [run_measures.measure_times("step", "", step)]
        rows += [run_measures.measure_times(name, "", values) for name, values in times.items()]
        return msgspec.structs.replace(run, times=rows)

    for _ in range(1_000):
        found = compare_runs(drawn(), drawn())
        alarms += any(time.word in ("slower", "faster") for time in found.times)

    assert alarms <= 10


def test_warm_up_profiled_and_failed_steps_are_left_out(tmp_path):
    """They would make a run slower than it is, and it is said how many they were."""
    run = RunFolderBuilder(tmp_path)
    for n in range(50):
        spent = 500 if n in (0, 10, 11) else 10
        kept = "profiled" if n in (10, 11) else None
        run.step(n, n * S, {"forward": spent * MS}, kept=kept, error=n == 30)
    run.process(60 * S)

    measures = measure_run(read_run(run.write()))

    assert measures.left_out == {"warm-up": 1, "profiled": 2, "failed": 1}
    assert measures.steps == 46
    assert measures.times[0].max_ns == 10 * MS


def test_a_section_of_one_run_alone_is_new_or_gone(made):
    """Its time is the step's difference."""
    before, after = measure_run(made(1)), measure_run(made(2, rare=1))

    new = compare_runs(before, after)
    gone = compare_runs(after, before)

    assert words(new)["log"] == "slower"
    assert words(gone)["log"] == "faster"
    assert next(time for time in new.times if time.name == "log").before_ns is None


def test_a_section_of_one_run_alone_that_is_nothing_of_a_step_changes_nothing(made):
    """A garbage collection of a millisecond in one step of three hundred is no reason for red."""
    before, after = measure_run(made(1)), measure_run(made(2, rare=290))

    assert words(compare_runs(before, after))["log"] == "same"
    assert words(compare_runs(after, before))["log"] == "same"


def test_few_steps_are_unclear(made):
    """Five steps tell nothing, and it is not called the same."""
    found = compare_runs(measure_run(made(1, count=5)), measure_run(made(2, count=5)))

    assert set(words(found).values()) == {"unclear"}


def test_what_is_unknown_of_a_machine_is_no_difference(made):
    """A run that was over before anything was read ran on a machine all the same."""
    before = measure_run(made(1))
    before, after = (
        msgspec.structs.replace(before, machine={"ranks": ranks} | known)
        for ranks, known in ((1, {}), (2, {"cpus": 2, "gpus": []}))
    )

    found = [(one.name, one.before, one.after) for one in compare_runs(before, after).differing]
    assert found == [("ranks", 1, 2)]


def test_what_else_differs_is_said(made):
    """Parameters that only one has, too."""
    before = measure_run(made(1, params={"lr": 0.1, "batch": 32}))
    after = measure_run(made(2, params={"lr": 0.2, "batch": 32, "amp": True}))

    found = compare_runs(before, after)

    told = {(one.what, one.name): (one.before, one.after) for one in found.differing}
    assert told == {("param", "lr"): (0.1, 0.2), ("param", "amp"): (None, True)}


def test_kernels_are_named_with_what_changed_of_them(made):
    """How long a call takes, how many there are, or that there is none any more."""
    before, after = measure_run(made(1)), measure_run(made(2))
    first = [("gemm", 10.0, 50e3), ("softmax", 4.0, 20e3), ("copy", 2.0, 30e3), ("norm", 1.0, 9e3)]
    second = [("gemm", 10.0, 80e3), ("softmax", 8.0, 20e3), ("norm", 1.0, 9e3), ("add", 1.0, 9e4)]

    def with_kernels(run, kernels):
        rows = [
            KernelMeasures(name=name, section="forward", calls_per_step=calls, mean_ns=ns)
            for name, calls, ns in kernels
        ]
        return msgspec.structs.replace(run, kernels=rows)

    found = compare_runs(with_kernels(before, first), with_kernels(after, second))

    assert [(change.name, change.reason) for change in found.kernels] == [
        ("gemm", "speed"),
        ("add", "new"),
        ("softmax", "count"),
        ("copy", "gone"),
    ]


def test_a_baseline_file_says_what_its_run_does(made, tmp_path):
    """Comparing with the file and with the run are one."""
    run, after = measure_run(made(1)), measure_run(made(2, forward=1.1))
    file = tmp_path / "base.json"
    file.write_bytes(msgspec.json.encode(run))

    assert compare_runs(read_baseline(file), after) == compare_runs(run, after)


@pytest.mark.parametrize(
    ("content", "said"),
    [("{", "--write-baseline"), ("[]", "--write-baseline"), ('{"format": 9}', "upgrade")],
)
def test_what_is_no_baseline_is_refused_by_name(tmp_path, content, said):
    """With the file and what to do."""
    file = tmp_path / "base.json"
    file.write_text(content)

    with pytest.raises(StoreError, match=said) as error:
        read_baseline(file)

    assert "base.json" in str(error.value)


def test_baseline_that_is_no_regular_file_is_refused(tmp_path):
    """A pipe would be waited for, and a device read for ever."""
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "device.json").symlink_to("/dev/zero")

    for name in ("pipe.json", "device.json"):
        with pytest.raises(StoreError, match="not a regular file"):
            read_baseline(tmp_path / name)
