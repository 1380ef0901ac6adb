"""The run that tests of timelines write and open.

Two ranks of two steps; one step was profiled on rank 0. All times in the tests are ms after START.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from run_folders import MS, START, RunFolderBuilder, S

from otel_mlperf import names

if TYPE_CHECKING:
    from pathlib import Path

THREAD_ID = 4242
ROOT = f"{1:016x}"
MAIN = {"track": 140_000_000_000_001, "thread": "MainThread", "thread_id": THREAD_ID}
LOADER = {"track": 140_000_000_000_002, "thread": "loader", "thread_id": 4243}
TASK = {"thread_id": THREAD_ID}
HOST = {
    "kind": "event",
    "track": THREAD_ID,
    "thread": "thread 4242 (python)",
    "thread_id": THREAD_ID,
}
STREAM = {"kind": "event", "track": -4, "thread": "stream 7 ", "category": "kernel"}
STREAM |= {"thread_id": None}
DEVICE = json.dumps({names.ASYNCHRONOUS: True, names.DEVICE_INDEX: 0, names.STREAM_ID: 7})
ROLLED_UP = json.dumps({names.ROLLED_UP: 5, names.ROLLED_UP_SUM: 2 * MS})

RANK_0 = [
    ("rank 0 · node1", None, "train 0", 0, 100),
    ("rank 0 · node1", None, "train 1", 100, 100),
    ("MainThread", None, "train.step", 100, 100),
    ("MainThread", "train.step", "data.load", 100, 10),
    ("MainThread", "train.step", "forward", 110, 50),
    ("MainThread", "forward", "aten::linear", 115, 20),
    ("MainThread", "aten::linear", "cudaLaunchKernel", 120, 5),
    ("MainThread · rolled up", None, "norm ×5", 130, 20),
    ("loader", None, "prefetch", 105, 60),
    ("task 1", None, "fetch", 162, 20),
    ("task 2", None, "fetch", 165, 20),
    ("device 0 · stream 7", None, "gemm", 130, 40),
    ("device 0 · stream 7", None, "relu", 170, 40),
    ("device 0 · stream 7 (2)", None, "copy", 160, 40),
]
"""Line, name of the parent on it, name, begin and duration of each slice of rank 0."""
RANK_1 = [
    ("rank 1 · node2", None, "train 0", 0, 110),
    ("rank 1 · node2", None, "train 1", 110, 90),
]
LINES = {
    "rank 0 · node1": [
        "marks",
        "MainThread",
        "MainThread · rolled up",
        "loader",
        "task 1",
        "task 2",
        "device 0 · stream 7",
        "device 0 · stream 7 (2)",
        "process.cpu.time per second (user)",
        "process.memory.usage",
        "step duration (train)",
        "loss (train)",
    ],
    "rank 1 · node2": ["step duration (train)"],
}
"""The lines below each rank, in order."""
ARROWS = [
    ("aten::linear", "copy"),
    ("aten::linear", "gemm"),
    ("aten::linear", "relu"),
    ("train.step", "fetch"),
    ("train.step", "fetch"),
    ("train.step", "prefetch"),
]
"""From what on one track to what it caused on another."""
MARKS = [("marks", None, "lr halved", 120, 0)]
"""The same of what was marked on rank 0, without a duration."""
CPUS = [(0, 2.0), (50, 0.5)]
"""When so many processors were busy, as the growth of their time says."""


def timeline_run(runs: Path) -> Path:
    """The folder of the run."""
    run = RunFolderBuilder(runs, world_size=2)
    run.process(S, rank=0, host="node1", world_size=2)
    run.process(S, rank=1, host="node2", world_size=2)
    run.step(0, 0, {"forward": 100 * MS}, kept=None)
    run.step(1, 100 * MS, {"forward": 100 * MS}, kept="profiled")
    run.step(0, 0, {"forward": 110 * MS}, rank=1)
    run.step(1, 110 * MS, {"forward": 90 * MS}, rank=1)
    _sections(run)
    for at, seconds, memory in ((0, 1.0, 1e9), (50, 1.1, 2e9), (150, 1.15, 1.5e9)):
        _reading(run, names.PROCESS_CPU_TIME.name, {"cpu.mode": "user"}, at, seconds)
        _reading(run, names.PROCESS_MEMORY.name, {}, at, memory)
    logged = {"phase": "train", "name": "loss", "number": 1}
    run.row("values", rank=0, restart=0, time_ns=START + 190 * MS, value=0.5, **logged)
    run.mark("lr halved", 120 * MS, 1)
    return run.write()


def _sections(run: RunFolderBuilder) -> None:
    inside = {"root_id": ROOT}
    root = run.span(1, "train.step", 100 * MS, 100 * MS, root_id=ROOT, category="step", **MAIN)
    run.span(1, "data.load", 100 * MS, 10 * MS, parent_id=root, **MAIN | inside)
    forward = run.span(1, "forward", 110 * MS, 50 * MS, parent_id=root, **MAIN | inside)
    operator = run.span(1, "aten::linear", 115 * MS, 20 * MS, parent_id=forward, **HOST | inside)
    run.span(1, "cudaLaunchKernel", 120 * MS, 5 * MS, parent_id=operator, kept="", **HOST | inside)
    for name, at in (("gemm", 130), ("copy", 160), ("relu", 170)):
        run.span(
            1, name, at * MS, 40 * MS, parent_id=operator, attributes=DEVICE, **STREAM | inside
        )
    rolled = {"kind": "rollup", "attributes": ROLLED_UP}
    run.span(1, "norm", 130 * MS, 20 * MS, parent_id=forward, **MAIN | rolled | inside)
    rest = {"kind": "event_rollup", "track": -1, "thread": "", "thread_id": None}
    run.span(
        1, "aten::add", 116 * MS, MS, parent_id=operator, attributes=ROLLED_UP, **rest | inside
    )
    run.span(1, "prefetch", 105 * MS, 60 * MS, parent_id=root, **LOADER | inside)
    for number, at in ((1, 162), (2, 165)):
        task = TASK | {"track": number, "thread": f"task {number}"}
        run.span(1, "fetch", at * MS, 20 * MS, parent_id=root, **task | inside)


def _reading(
    run: RunFolderBuilder, name: str, labels: dict[str, str], at: int, value: float
) -> None:
    time_ns = START + at * MS
    row = {"rank": 0, "restart": 0, "name": name, "labels": json.dumps(labels)}
    run.row("readings", time_ns=time_ns, value=value, **row)
