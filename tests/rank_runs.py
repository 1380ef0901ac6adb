"""Runs of several ranks that step together, for tests."""

from __future__ import annotations

import json

from run_folders import MS, START, RunFolderBuilder, S

from otel_mlperf import names
from otel_mlperf.analysis.findings.finding_sources import judge_run
from otel_mlperf.store.run_folders import read_run

STEPS = 30


def stepping(runs, *ranks, steps=STEPS):
    """Steps with so many ms in each section on each rank: numbers, or functions of a step's."""
    run = RunFolderBuilder(runs)
    for rank, parts in enumerate(ranks):
        at = 0
        for n in range(steps):
            spent = {name: int((ms(n) if callable(ms) else ms) * MS) for name, ms in parts.items()}
            run.step(n, at, spent, rank=rank)
            at += sum(spent.values())
        run.process(at, rank=rank, world_size=len(ranks))
    return run


def exposed(run, *ranks_ms):
    """What DDP has timed of the backward passes of each rank."""
    for rank, ms in enumerate(ranks_ms):
        run.row(
            "readings", rank=rank, restart=0, name=names.DDP_EXPOSED_COMMUNICATION.name,
            labels="{}", time_ns=START, value=ms / 1e3,
        )  # fmt: skip


def counted(run, metric, *of_ranks):
    """What each rank has read of a metric last."""
    for rank, value in enumerate(of_ranks):
        row = {"rank": rank, "restart": 0, "name": metric.name, "labels": "{}"}
        run.row("readings", **row, time_ns=START, value=float(value) / 2)
        run.row("readings", **row, time_ns=START + S, value=float(value))


def on_cpus(run, ranks=2, waits=0.02):
    """How long main threads ran and waited for a CPU, in the first five seconds."""
    row = {"restart": 0, "labels": "{}"}
    for after_s in (0, 5):
        at = row | {"time_ns": START + after_s * S}
        for rank in range(ranks):
            for metric, share in (
                (names.MAIN_THREAD_CPU_TIME, 0.5),
                (names.MAIN_THREAD_RUN_DELAY, waits),
            ):
                run.row("readings", rank=rank, name=metric.name, value=share * after_s, **at)
        time = names.SYSTEM_CPU_TIME.name
        labels = json.dumps({names.CPU_MODE: "user"})
        run.row("readings", rank=None, name=names.SYSTEM_CPU_COUNT.name, value=8.0, **at)
        run.row("readings", rank=None, name=time, value=1.0 * after_s, **at | {"labels": labels})


def found_in(run, *ids):
    """The findings of these ids, by id."""
    found = judge_run(read_run(run.write())).findings
    return {one.id: one for one in found if one.id in ids}
