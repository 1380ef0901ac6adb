"""A model that is computed in too small pieces is found."""

from __future__ import annotations

import json

import pytest
from run_folders import MS, START, RunFolderBuilder, S

from otel_mlperf import names
from otel_mlperf.analysis.findings.finding_sources import judge_run
from otel_mlperf.findings.finding import WIDEST
from otel_mlperf.store.run_folders import read_run


def judged(
    tmp_path, nodes, backward_ns=8 * MS, gpu=False, on_cpu=None, calls=1, selects=0, weights=200
):
    """Findings of a run of steps of 20 ms with so many operations in a backward pass."""
    run = RunFolderBuilder(tmp_path)
    for n in range(400):
        half_ns = 10 * MS - backward_ns // 2
        run.step(n, n * 20 * MS, {"data.load": half_ns, "backward": backward_ns}, own=half_ns)
        step = {"rank": 0, "restart": 0, "phase": "train", "n": n, "number": n}
        run.section(step, "forward", half_ns, count=calls)
    for at in (1, 2):
        for metric, value in (
            (names.GRAPH_NODES, nodes),
            (names.GRAPH_SELECTS, selects),
            (names.GRAPH_WEIGHTS, weights),
        ):
            if value is None:
                continue
            run.row(
                "readings", rank=0, restart=0, name=metric.name,
                labels=json.dumps({}), time_ns=START + at * S, value=float(value),
            )  # fmt: skip
    for at in (0, 6) if on_cpu is not None else ():
        for metric, rate in (
            (names.CGROUP_CPU_LIMIT, 0),
            (names.MAIN_THREAD_CPU_TIME, on_cpu),
            (names.MAIN_THREAD_RUN_DELAY, 1 - on_cpu),
        ):
            run.row(
                "readings", rank=0, restart=0, name=metric.name,
                labels=json.dumps({}), time_ns=START + at * S, value=4 + rate * at,
            )  # fmt: skip
    run.process(9 * S, has_gpu=gpu)
    found = judge_run(read_run(run.write())).findings
    return [one for one in found if one.id == "small_operators"]


def test_many_operations_of_a_few_microseconds_are_found(tmp_path):
    """A thousand of 8 µs each, in a pass of 8 ms."""
    (one,) = judged(tmp_path, 1000)

    assert "a backward pass runs 1,000 operations of 8.0 µs each, of which 62%" in one.summary
    assert one.evidence["dispatch_share"] == pytest.approx(5 / 8)
    assert one.gain.low == pytest.approx(0.85 * 5 / 8 * 14 / 20)
    assert one.gain.high == pytest.approx((1 + 5 / 8) / 2 * 14 / 20)


@pytest.mark.parametrize("each_us", [5, 7, 9, 14])
def test_the_gain_is_narrow_enough_to_act_on(tmp_path, each_us):
    """Of operations that take all of a step, from half of their time upward."""
    (one,) = judged(tmp_path, 18_000 // each_us, backward_ns=18 * MS)

    assert 0 < one.gain.high - one.gain.low <= WIDEST


def test_a_program_without_sections_in_its_steps_is_told(tmp_path):
    """Of its steps at most all is the pass: 1,000 operations of 20 µs at most, and 10 weights.

    What its own lines take is no part of it.
    """
    (one,) = found_without_sections(tmp_path)
    (less,) = found_without_sections(tmp_path / "own", own_samples=30)

    assert "a backward pass runs 1,000 operations of at most 20.0 µs each" in one.summary
    assert (one.gain.low, one.gain.high) == pytest.approx((0.75, 1.0))
    assert less.gain.high == pytest.approx(0.7)


def found_without_sections(tmp_path, own_samples=0):
    """Findings of steps of 20 ms; so many of a hundred samples are in a line of the program."""
    run = RunFolderBuilder(tmp_path)
    for n in range(400):
        run.step(n, n * 20 * MS, {}, own=20 * MS)
    for metric, value in ((names.GRAPH_NODES, 1000.0), (names.GRAPH_WEIGHTS, 10.0)):
        run.row(
            "readings", rank=0, restart=0, name=metric.name, labels="{}",
            time_ns=START + S, value=value,
        )  # fmt: skip
    for line, call, samples in ((9, "torch", 100 - own_samples), (12, "", own_samples)):
        told = {
            names.CODE_FILE: "train.py", names.CODE_FUNCTION: "train", names.CODE_LINE: str(line),
            names.STACK_CALL: "model", names.STACK_PACKAGE: call, names.STACK_WITHIN: "",
        }  # fmt: skip
        run.row(
            "readings", rank=0, restart=0, name=names.STACK_SAMPLES.name, labels=json.dumps(told),
            time_ns=START + S, value=float(samples),
        )  # fmt: skip
    run.process(9 * S)
    found = judge_run(read_run(run.write())).findings
    return [one for one in found if one.id == "small_operators"]


def test_small_operations_that_take_little_of_a_step_are_no_finding(tmp_path):
    """A rank that waits for another nine tenths of its time wins nothing by them."""
    run = RunFolderBuilder(tmp_path)
    for n in range(400):
        run.step(n, n * 20 * MS, {"backward": MS, "all_reduce": 19 * MS})
    for metric, value in ((names.GRAPH_NODES, 500.0), (names.GRAPH_WEIGHTS, 100.0)):
        run.row(
            "readings", rank=0, restart=0, name=metric.name, labels="{}",
            time_ns=START + S, value=value,
        )  # fmt: skip
    run.process(9 * S)

    found = judge_run(read_run(run.write())).findings
    assert "small_operators" not in {one.id for one in found}


def test_operations_that_compute_something_are_no_finding(tmp_path):
    """A deep model has a thousand, too: of 20 µs each."""
    assert judged(tmp_path, 1000, backward_ns=18 * MS)[:1] == []


def test_layers_that_are_called_in_a_loop_are_found(tmp_path):
    """A cell for each of a hundred steps of time: 10 weights, of 18 µs each operation."""
    (one,) = judged(tmp_path, 1000, backward_ns=18 * MS, weights=10)

    assert "100 operations per weight: layers are called in a loop" in one.summary
    assert one.gain.high == pytest.approx(19 / 20)
    assert judged(tmp_path / "shared", 1000, backward_ns=18 * MS, weights=50) == []
    assert judged(tmp_path / "long", 300, backward_ns=18 * MS, weights=5) == []


def test_an_rnn_of_torch_itself_is_no_finding(tmp_path):
    """Its small operations are torch's own; a model that is called for each item is the program's.

    Its loop is known by a graph whose weights are not told.
    """
    assert judged(tmp_path, 1000, weights=None) == []
    assert len(judged(tmp_path / "called", 1000, weights=None, calls=64)) == 1


def test_a_model_that_is_called_for_each_item_is_found(tmp_path):
    """Of 18 µs each, too; a healthy one is called a few times for each backward pass."""
    (one,) = judged(tmp_path, 1000, backward_ns=18 * MS, calls=64)

    assert "the model is called 64 times per backward pass" in one.summary
    assert (one.gain.low, one.gain.high) == pytest.approx((0.75 * 19 / 20, 19 / 20))
    assert judged(tmp_path / "accumulated", 1000, backward_ns=18 * MS, calls=8) == []


def test_a_loop_over_time_is_found(tmp_path):
    """Of 18 or 72 µs each, too; a few elements are taken out in many a model."""
    (one,) = judged(tmp_path, 1000, backward_ns=18 * MS, selects=200)

    assert "200 elements are selected one by one per backward pass" in one.summary
    assert (one.gain.low, one.gain.high) == pytest.approx((0.75 * 19 / 20, 19 / 20))
    assert len(judged(tmp_path / "long", 250, backward_ns=18 * MS, selects=80)) == 1
    assert judged(tmp_path / "few", 1000, backward_ns=18 * MS, selects=12) == []


def test_a_small_model_is_no_finding(tmp_path):
    """Twenty operations, however short they are."""
    assert judged(tmp_path, 20, backward_ns=MS // 10) == []


def test_what_a_gpu_runs_is_not_judged_by_the_hosts_time(tmp_path):
    """There the host only gives work."""
    assert judged(tmp_path, 1000, gpu=True) == []


def test_an_operation_that_waits_for_a_cpu_is_no_larger_for_it(tmp_path):
    """A thousand of 20 µs, of which others had the CPU for three quarters."""
    (one,) = judged(tmp_path, 1000, backward_ns=18 * MS, on_cpu=0.25)

    assert one.evidence["each_ns"] == pytest.approx(4_500)
