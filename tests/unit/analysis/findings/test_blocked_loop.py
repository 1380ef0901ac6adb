"""A main thread that is blocked in a step, where no section has it wait, is found."""

from __future__ import annotations

import json

import pytest
from run_folders import MS, START, RunFolderBuilder, S

from otel_mlperf import names
from otel_mlperf.analysis.findings.cpu_shares import read_cpu_shares
from otel_mlperf.analysis.findings.finding_sources import judge_run
from otel_mlperf.analysis.findings.run_numbers import RunNumbers
from otel_mlperf.analysis.summary.summary import summarize
from otel_mlperf.store.run_folders import read_run
from otel_mlperf.store.table_reader import Store

LINE = {names.CODE_FILE: "train.py", names.CODE_LINE: "7", names.CODE_FUNCTION: "main"}
PARTS = {"forward": 40 * MS, "backward": 30 * MS}


def judged(tmp_path, *, parts=PARTS, own=30 * MS, on_cpu=0.72, waits=0.02, **more):
    """The finding of 20 s of steps of 100 ms; of the main thread what it ran, and had no CPU."""
    run, late = RunFolderBuilder(tmp_path), more.get("warm_up", 0)
    for n in range(200):
        run.step(n, n * 100 * MS + late * bool(n), parts, own=own + late * (not n))
    run.process(
        20 * S + late, has_gpu=more.get("has_gpu", False), world_size=more.get("world_size", 1)
    )
    for at_s in range(0, 21 + late // S, 5):
        of_host = {
            (names.SYSTEM_CPU_COUNT, ""): 2.0,
            (names.SYSTEM_CPU_TIME, "user"): 7.0 + at_s,
            (names.SYSTEM_CPU_TIME, "steal"): 1 + more.get("steal", 0.0) * at_s,
        }
        for (metric, mode), value in of_host.items():
            run.row(
                "readings", rank=None, restart=0, name=metric.name, value=value,
                labels=json.dumps({names.CPU_MODE: mode} if mode else {}),
                time_ns=START + at_s * S,
            )  # fmt: skip
        values = {
            names.CGROUP_CPU_LIMIT: 2,
            names.MAIN_THREAD_CPU_TIME: 3 + on_cpu * at_s,
            names.MAIN_THREAD_RUN_DELAY: 1 + waits * at_s,
        }
        if "threads" in more:  # of which two run
            values[names.PROCESS_CPU_TIME] = 3 + 2 * at_s
            values[names.PROCESS_RUN_DELAY] = 1 + (more["threads"] - 2) * at_s
        if "writes" in more:
            values[names.PROCESS_WRITE_CALLS] = 50 + more["writes"] * at_s
        if "line" in more:
            values[names.STACK_SAMPLES] = 20 * at_s
        labels = {
            names.STACK_SAMPLES: more.get("line"),
            names.PROCESS_CPU_TIME: {names.PROCESS_ROLE: "main", names.CPU_MODE: "user"},
            names.PROCESS_RUN_DELAY: {names.PROCESS_ROLE: "main"},
        }
        for metric, value in values.items():
            run.row(
                "readings", rank=0, restart=0, name=metric.name,
                labels=json.dumps(labels.get(metric, {})),
                time_ns=START + at_s * S, value=float(value),
            )  # fmt: skip
    found = judge_run(read_run(run.write())).findings
    return next((one for one in found if one.id == "blocked_loop"), None)


def test_a_loop_that_waits_for_what_it_writes_is_found(tmp_path):
    """Of 30 % in no section it stands still for 26 %, and it writes once a step."""
    one = judged(tmp_path, writes=10)

    assert one.evidence["share"] == pytest.approx(0.26)
    assert one.evidence["writes"] == pytest.approx(1.0, rel=0.01)
    assert (
        "another process, or sleeping); the process makes 1.0 write calls per step" in one.summary
    )
    assert (one.gain.low, one.gain.high) == pytest.approx((0.195, 0.39))


def test_a_loop_that_waits_for_its_own_threads_is_not_blocked(tmp_path):
    """Sixteen of them want two CPUs, and at the end of each operation one waits for the last."""
    assert judged(tmp_path / "alone", on_cpu=0.5, waits=0.2)
    assert judged(tmp_path, on_cpu=0.5, waits=0.2, threads=16) is None


def test_what_is_computed_to_write_is_saved_too(tmp_path):
    """It stands still for 14 %, and what is in no section is 30 %."""
    one = judged(tmp_path, on_cpu=0.84, writes=10)

    assert (one.gain.low, one.gain.high) == pytest.approx((0.105, 0.375))
    assert one.where.section == "untracked"


@pytest.mark.parametrize("writes", [{}, {"writes": 0.1}])
def test_a_loop_that_writes_nothing_waits_for_something_else(tmp_path, writes):
    """A lock, a network, a sleep: from outside these look alike."""
    assert "the network, a lock" in judged(tmp_path, **writes).summary


def test_less_is_enough_of_a_loop_that_writes(tmp_path):
    """It stands still for 8 %: who writes nothing may do so for many a reason."""
    assert judged(tmp_path, on_cpu=0.9, writes=10).evidence["share"] == pytest.approx(0.08)
    assert judged(tmp_path / "silent", on_cpu=0.9, writes=0.1) is None


def test_never_more_than_what_is_in_no_section(tmp_path):
    """It may stand still in forward and backward, too: that is not the loop's own."""
    one = judged(tmp_path, parts={"forward": 50 * MS, "backward": 35 * MS}, own=15 * MS, on_cpu=0.5)

    assert one.evidence["share"] == pytest.approx(0.15)


def test_a_loop_that_works_is_none(tmp_path):
    """Whatever of it is in no section."""
    assert judged(tmp_path, on_cpu=0.97) is None


def test_who_has_no_cpu_does_not_stand_still(tmp_path):
    """It is ready to run."""
    assert judged(tmp_path, on_cpu=0.6, waits=0.38) is None


def test_who_lost_the_cpu_to_another_guest_does_not_stand_still(tmp_path):
    """The hypervisor took 0.36 of the CPUs that were busy for 1.0, so a quarter of its time."""
    assert judged(tmp_path, steal=0.36) is None


def test_what_it_waits_for_in_the_warm_up_is_no_loops(tmp_path):
    """As long as it is compiled for, the main thread may sleep."""
    assert judged(tmp_path, on_cpu=0.79, waits=0.0, warm_up=5 * S) is None


def test_a_wait_in_a_section_is_that_sections(tmp_path):
    """All of a wait for data, and of a section of the program's own, may be standing still."""
    parts = {"data.load": 25 * MS, "forward": 25 * MS, "backward": 20 * MS}
    assert judged(tmp_path, parts=parts, on_cpu=0.7) is None
    parts = {"log": 25 * MS, "forward": 25 * MS, "backward": 20 * MS}
    assert judged(tmp_path / "own", parts=parts, on_cpu=0.7) is None


def test_with_a_gpu_any_section_may_wait_for_it(tmp_path):
    """A backward pass for one is worked on elsewhere."""
    assert judged(tmp_path, has_gpu=True) is None


def test_with_another_rank_any_time_may_wait_for_it(tmp_path):
    """In no section, too: a collective that the loop calls itself is in none."""
    assert judged(tmp_path, writes=10, world_size=2) is None


def test_what_is_beside_the_steps_is_not_in_them(tmp_path):
    """A fifth of the time lies between the steps: the main thread may have slept there."""
    parts = {"forward": 32 * MS, "backward": 24 * MS}
    assert judged(tmp_path, parts=parts, own=24 * MS, on_cpu=0.75) is None


def test_lines_that_write_are_named_instead(tmp_path):
    """Samples of the main thread say more than that it stands still."""
    assert judged(tmp_path, writes=10, line=LINE | {names.STACK_CALL: "fsync"}) is None


def test_the_line_is_named_that_stands_still_in_something_unknown(tmp_path):
    """What a call of that name waits for is not known here."""
    one = judged(tmp_path, line=LINE | {names.STACK_CALL: "rendezvous"})

    assert "the network, a lock" in one.summary
    assert one.summary.endswith("likely in rendezvous() at train.py:7 in main")


def test_what_is_written_after_the_last_step_is_not_the_loops(tmp_path):
    """A traceback is a write a line: the loop that ended by it wrote nothing."""
    run = RunFolderBuilder(tmp_path)
    for n in range(200):
        run.step(n, n * 100 * MS, {"forward": 70 * MS}, own=30 * MS)
    run.process(30 * S)
    series = {metric.name: range(5) for metric in (names.MAIN_THREAD_CPU_TIME,
              names.MAIN_THREAD_RUN_DELAY)}  # fmt: skip
    series |= {names.CGROUP_CPU_LIMIT.name: [2] * 5}
    series |= {names.PROCESS_WRITE_CALLS.name: [50, 50, 50, 50, 241]}
    for name, values in series.items():
        for at_s, value in zip((2, 8, 14, 19, 20.5), values, strict=True):
            run.row("readings", rank=0, restart=0, name=name, labels="{}",
                    time_ns=START + int(at_s * S), value=float(value))  # fmt: skip
    numbers = RunNumbers(summarize(folder := read_run(run.write())), Store(folder.path))

    (rank,) = read_cpu_shares(numbers).ranks
    assert rank.writes == 0.0
