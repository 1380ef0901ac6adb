"""Threads that wait for CPUs are found, with the likely users of the CPUs."""

from __future__ import annotations

import json

import numpy as np
import pytest
from run_folders import MS, START, RunFolderBuilder, S

from otel_mlperf import names
from otel_mlperf.analysis.findings.finding_sources import judge_run
from otel_mlperf.store.run_folders import read_run

_IDS = {"oversubscription", "noisy_neighbour"}
_LAST_S = 20
_USER = {names.CPU_MODE: "user"}


def judged(
    tmp_path,
    *,
    main=(0.98, 0.01),
    process=(1.9, 0.05),
    workers=None,
    busy=2.0,
    cpus=2,
    hosts=("node1",),
    every_s=5,
    last_s=_LAST_S,
):
    """Findings of 20 s of steps; of main thread, process and workers what ran and what waited."""
    run = RunFolderBuilder(tmp_path)
    for n in range(int(last_s * 10)):
        run.step(n, n * 100 * MS, {"forward": 99 * MS}, own=MS)
    for rank, host in enumerate(hosts):
        run.process(int(last_s * S), rank=rank, host=host)
    for at_s in np.arange(0, last_s + every_s / 2, every_s):

        def read(metric, value, rank=0, at_s=at_s, **labels):
            run.row(
                "readings", rank=rank, restart=0, name=metric.name,
                labels=json.dumps(labels),
                time_ns=START + int(at_s * S), value=float(value),
            )  # fmt: skip

        read(names.CGROUP_CPU_LIMIT, cpus)
        read(names.SYSTEM_CPU_COUNT, cpus, rank=None)
        read(names.SYSTEM_CPU_TIME, 90 + busy * at_s, rank=None, **_USER)
        read(names.MAIN_THREAD_CPU_TIME, 3 + main[0] * at_s)
        read(names.MAIN_THREAD_RUN_DELAY, 1 + main[1] * at_s)
        for role, used in (("main", process), ("worker", workers)):
            if used:
                label = {names.PROCESS_ROLE: role}
                read(names.PROCESS_CPU_TIME, 3 + used[0] * at_s, **label, **_USER)
                read(names.PROCESS_RUN_DELAY, 1 + used[1] * at_s, **label)
    found = judge_run(read_run(run.write())).findings
    return {one.id: one for one in found if one.id in _IDS}


def test_threads_that_fill_the_cpus_are_no_finding(tmp_path):
    """Two threads on two CPUs, with a little of the system beside them."""
    assert judged(tmp_path) == {}


def test_more_threads_than_cpus_are_found_and_what_to_set(tmp_path):
    """31 of 33 wait, and nobody else is there."""
    found = judged(tmp_path, main=(0.08, 0.9), process=(1.95, 29.0))

    (one,) = found.values()
    assert one.id == "oversubscription"
    assert one.where.rank == 0
    assert "OMP_NUM_THREADS=2" in one.action
    assert "30.9 threads of the training compete for 2 CPUs" in one.summary
    assert (one.gain.low, one.gain.high) == pytest.approx((0.45, 0.85))


def test_what_fewer_threads_win_can_be_acted_on(tmp_path):
    """From 36 to 81 % was too wide: the middle of it, where threads are not very many."""
    found = judged(tmp_path, main=(0.19, 0.72), process=(1.95, 6.0))["oversubscription"]

    assert (found.gain.low, found.gain.high) == pytest.approx((0.385, 0.785))


def test_more_threads_than_cpus_are_found_in_two_seconds(tmp_path):
    """Readings lie closer in the first seconds of the steps; it is told over how long they do."""
    found = judged(tmp_path, main=(0.08, 0.9), process=(1.95, 29.0), last_s=2, every_s=0.5)

    assert found["oversubscription"].evidence["over_ns"] == 2 * S


def test_a_second_decides_nothing(tmp_path):
    """Whatever it was may have passed by then."""
    assert judged(tmp_path, main=(0.08, 0.9), process=(1.95, 29.0), last_s=1, every_s=0.5) == {}


def test_workers_that_fight_for_the_cpus_are_told_from_threads_of_the_process(tmp_path):
    """Eight workers on two CPUs; what they do has to be done in any case."""
    found = judged(tmp_path, main=(0.5, 0.3), process=(0.6, 0.4), workers=(1.4, 6.0))

    one = found["oversubscription"]
    assert "fewer workers" in one.action
    assert one.gain.low == 0.0


def test_others_on_the_cpus_are_found_with_what_the_run_lacks_of_its_pace(tmp_path):
    """Two threads get half of what they ask for, two others the rest."""
    found = judged(tmp_path, main=(0.5, 0.5), process=(1.0, 1.0), busy=2.0)

    (one,) = found.values()
    assert one.id == "noisy_neighbour"
    assert one.evidence["others_cpus"] == pytest.approx(1.0)
    assert one.gain.low < 0.5 < one.gain.high
    assert "other programs use 1.0 of the 2 CPUs" in one.summary


def test_others_beside_whom_nobody_waits_are_no_finding(tmp_path):
    """The machine is large enough for both."""
    assert judged(tmp_path, busy=6.0, cpus=8) == {}


def test_who_the_others_are_on_several_hosts_is_not_known(tmp_path):
    """Readings of a node do not say which one it is."""
    found = judged(tmp_path, main=(0.5, 0.5), process=(1.0, 1.0), hosts=("node1", "node2"))

    assert found == {}


def test_too_few_readings_decide_nothing(tmp_path):
    """One at the beginning is not since when the steps run."""
    assert judged(tmp_path, main=(0.5, 0.5), process=(1.0, 1.0), every_s=60) == {}
