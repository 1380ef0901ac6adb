"""The reason why steps wait for their loader is found, and only if they do."""

from __future__ import annotations

import json

import numpy as np
import pytest
from loader_runs import LoaderRun
from run_folders import START, S

from otel_mlperf import names
from otel_mlperf.analysis.findings.finding_sources import judge_run
from otel_mlperf.findings.finding import Gain
from otel_mlperf.store.run_folders import read_run

_OF_LOADERS = {"data_loading", "worker_startup", "slow_worker", "collate", "storage"}
RESTING = (30.0, 1.0, 2.0)
"""Milliseconds of a batch in its samples, in collate_fn, and of CPU in its samples."""
COMPUTING = (30.0, 1.0, 30.0)
COLLATING = (2.0, 29.0, 2.0)
CHEAP = (0.4, 0.1, 0.4)


def found_in(run):
    """Findings of loaders, by id, worst first."""
    found = judge_run(read_run(run.write())).findings
    return {one.id: one for one in found if one.id in _OF_LOADERS}


def loaded(tmp_path, *workers, wait, work, steps=100, busy=0.5):
    """Steps that wait and work so many milliseconds; what each worker takes for a batch."""
    run = LoaderRun(tmp_path)
    run.train(steps, wait, work)
    run.workers(*workers, batches=steps)
    run.cpu_busy(busy)
    return run


def beside_others(run, seconds):
    """One of two CPUs is theirs, and the main thread waits for half of its time."""
    main = {names.PROCESS_ROLE: "main"}
    user = {names.CPU_MODE: "user"}
    for at_s in np.arange(0, seconds + 0.1, 0.5):
        for metric, rank, labels, value in (
            (names.SYSTEM_CPU_COUNT, None, {}, 2),
            (names.SYSTEM_CPU_TIME, None, user, 2 * at_s),
            (names.CGROUP_CPU_LIMIT, 0, {}, 2),
            (names.MAIN_THREAD_CPU_TIME, 0, {}, at_s / 2),
            (names.MAIN_THREAD_RUN_DELAY, 0, {}, at_s / 2),
            (names.PROCESS_CPU_TIME, 0, main | user, at_s),
            (names.PROCESS_RUN_DELAY, 0, main, at_s),
        ):
            run.row(
                "readings", rank=rank, restart=0, name=metric.name, labels=json.dumps(labels),
                time_ns=START + int(at_s * S), value=float(value),
            )  # fmt: skip


def near(gain, low, high):
    return gain == Gain(
        low=pytest.approx(low, abs=0.005), high=pytest.approx(high, abs=0.005), of=gain.of
    )


def test_one_slow_worker_of_three(tmp_path):
    """Batches come in order: its 60 ms are waited for, less three steps of work."""
    slow = (60.0, 0.0, 60.0)
    found = found_in(loaded(tmp_path, slow, CHEAP, CHEAP, wait=10, work=10))

    assert list(found) == ["slow_worker", "data_loading"]
    one = found["slow_worker"]
    # Spread over all it would be 61 / 9 ms a step, which the work covers.
    assert near(one.gain, 0.5, 0.5)
    assert one.summary.startswith("DataLoader worker 0 of Pix takes 120.0 × as long per batch")
    assert "its samples require more CPU time" in one.action
    assert found["data_loading"].action == (
        "See the finding slow_worker, which explains most of the data wait."
    )


def test_a_slow_worker_that_nobody_waits_for(tmp_path):
    """The work of the steps covers it."""
    assert found_in(loaded(tmp_path, (15.0, 0.0, 15.0), CHEAP, wait=0.2, work=10)) == {}


def test_a_slow_collate_fn(tmp_path):
    """Without workers all of it is waited for; a quarter may be left."""
    found = found_in(loaded(tmp_path, COLLATING, wait=31.5, work=20))

    assert list(found) == ["collate", "data_loading"]
    assert near(found["collate"].gain, 29 * 0.75 / 51.5, 29 / 51.5)
    assert "collate_fn takes 94% of the loading time of a batch of Pix" in found["collate"].summary


def test_a_collate_fn_in_workers(tmp_path):
    """Two workers bring one each 15.5 ms, and 5 ms of it are covered."""
    found = found_in(loaded(tmp_path, COLLATING, COLLATING, wait=10.5, work=5))

    assert found["collate"].gain.high == pytest.approx(10.5 / 15.5, abs=0.005)


def test_samples_that_wait_without_a_cpu(tmp_path):
    """It is storage, and workers that wait need no CPU: also where all are busy."""
    found = found_in(loaded(tmp_path, RESTING, wait=31.5, work=20, busy=0.99))

    assert list(found) == ["storage", "data_loading"]
    one = found["storage"]
    assert (
        "spends 90% of its time waiting, likely for files or the network, without using a CPU"
        in one.summary
    )
    assert "num_workers=2" in one.action
    # Files that are there save 28 of 51.5 ms; two workers all of the wait.
    assert near(one.gain, 28 / 51.5, 31 / 51.5)


def test_waiting_for_a_cpu_is_no_storage(tmp_path):
    """The thread was ready to run."""
    run = LoaderRun(tmp_path)
    run.train(100, 31.5, 20)
    run.fetched("main", 100, 3.0, 0.1, cpu_s=0.2, delay_s=2.7)

    assert "storage" not in found_in(run)


def test_without_cpu_times_there_is_no_storage(tmp_path):
    """What was not counted is not guessed."""
    assert set(found_in(loaded(tmp_path, (30.0, 1.0, None), wait=31.5, work=20))) == {
        "data_loading"
    }


def test_more_workers_where_cpus_are_free(tmp_path):
    """So many that the step's work covers them, as far as CPUs can; or samples that cost less."""
    found = found_in(loaded(tmp_path, COMPUTING, wait=31.5, work=20, busy=0.5))

    one = found["data_loading"]
    assert one.action.startswith("Use DataLoader(..., num_workers=2, persistent_workers=True)")
    # One worker: as long as the longer of the two; without any wait all of it.
    assert near(one.gain, 20 / 51.5, 31.5 / 51.5)
    assert "50 % of the CPU time is free." in one.action
    assert one.action.endswith("before the training would save at most 61 % of a step.")


def test_workers_have_what_is_left_of_the_cpus(tmp_path):
    """A worker would cover the whole wait, but nine tenths of the CPUs are busy already."""
    one = found_in(loaded(tmp_path, COMPUTING, wait=31.5, work=40, busy=0.88))["data_loading"]

    assert near(one.gain, 0.12, 31.5 / 71.5)


def test_no_more_workers_where_cpus_are_busy(tmp_path):
    """Cheaper samples instead."""
    one = found_in(loaded(tmp_path, COMPUTING, wait=31.5, work=20, busy=0.98))["data_loading"]

    assert "make loading a sample cheaper" in one.action
    assert one.gain.low == 0.0


def test_batches_that_are_cheaper_than_to_hand_them_over(tmp_path):
    """Workers keep up, the step waits: it is better without them. No warning."""
    found = found_in(loaded(tmp_path, CHEAP, CHEAP, wait=5, work=5))

    one = found["data_loading"]
    assert (one.severity, list(found)) == ("info", ["data_loading"])
    assert "num_workers=0" in one.action
    assert near(one.gain, 0.0, 0.45)


@pytest.mark.parametrize("workers", [(CHEAP,), (CHEAP, CHEAP)])
def test_steps_of_a_millisecond(tmp_path, workers):
    """Half of one is waited for: to hand a batch over costs as much."""
    assert found_in(loaded(tmp_path, *workers, wait=0.6, work=0.6)) == {}


@pytest.mark.parametrize("workers", [(CHEAP,), (CHEAP, CHEAP)])
def test_waits_for_a_cpu_are_no_loading(tmp_path, workers):
    """Batches are cheap, all CPUs are busy, and the wait is as long: it is a wait for a CPU."""
    assert found_in(loaded(tmp_path, *workers, wait=8, work=4, busy=0.99)) == {}


@pytest.mark.parametrize(("delay_ms", "is_found"), [(33.0, False), (3.0, True)])
def test_workers_that_wait_for_a_cpu_are_not_too_few(tmp_path, delay_ms, is_found):
    """Beside others, who take the CPUs from workers and steps: with all of them they keep up."""
    run = LoaderRun(tmp_path)
    run.train(100, 10.0, 10.0)
    for worker in ("0", "1"):
        run.fetched(worker, 50, 2.0, 0.0, cpu_s=2.0 - delay_ms / 20, delay_s=delay_ms / 20)
    run.cpu_busy(0.99)
    beside_others(run, 2.0)

    assert ("data_loading" in found_in(run)) == is_found


def test_two_batches_in_a_step(tmp_path):
    """Both are fetched and waited for."""
    run = LoaderRun(tmp_path)
    for n in range(100):
        run.step(n, n * 60_000_000, {"forward": 18_000_000})
        run.section(run.steps[-1], "data.load", 42_000_000, count=2)
        run.steps[-1]["duration_ns"] += 42_000_000
    run.process(6_000_000_000)
    run.counted_batches(200, 42 * 100)
    run.workers((1.0, 20.0, 1.0), batches=200)

    assert found_in(run)["collate"].gain.high == pytest.approx(40 / 60, abs=0.01)


def started(tmp_path, state, passes, first_s=0.12, end_s=0.03):
    """Passes of twenty steps of ten milliseconds, and what their workers take."""
    run = LoaderRun(tmp_path)
    run.train(passes * 20, 0.1, 9.9, spacing_ms=(first_s + end_s) * 1e3 / 20)
    run.workers(CHEAP, CHEAP, batches=passes * 20)
    run.passes(state, passes, first_s, end_s)
    return run


def test_workers_that_start_for_each_pass(tmp_path):
    """The first pass starts them anyway, and kept ones fetch a first batch too."""
    one = found_in(started(tmp_path, "started", 10))["worker_startup"]

    assert "restarted for each of 10 passes: 150 ms per pass" in one.summary
    assert "persistent_workers=True" in one.action
    low, high = 9 * 0.1195 / 3.5, 9 * 0.1495 / 3.5
    assert near(one.gain, low, high)
    assert one.gain.of == "run"


@pytest.mark.parametrize(("state", "passes"), [("kept", 10), ("none", 10), ("started", 1)])
def test_workers_that_start_once_or_never(tmp_path, state, passes):
    """Nothing is done again."""
    assert "worker_startup" not in found_in(started(tmp_path, state, passes))


def test_short_starts(tmp_path):
    """A share of the training that nobody notices."""
    assert found_in(started(tmp_path, "started", 10, first_s=0.01, end_s=0.0)) == {}
