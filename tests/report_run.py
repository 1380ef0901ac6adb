"""A run with everything that a page shows, built by hand, in which some names are hostile."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from run_folders import MS, START, RunFolderBuilder, S

from otel_mlperf import names
from otel_mlperf.run_files.growth_file import GrowthRow
from otel_mlperf.run_files.hot_file import HotSpot

if TYPE_CHECKING:
    from pathlib import Path

HOSTILE = "<script>alert(1)</script>"
ENDING = "</script><img src=x onerror=alert(2)>"
GIB = 1 << 30


def report_run(
    folder: Path,
    *,
    steps: int = 60,
    ranks: int = 2,
    run_id: str = "3f2a9c0d17e84b55",
    wait: int = 8,
) -> RunFolderBuilder:
    """Steps in two epochs on ranks of which the last waits longest; readings and a loss."""
    run = RunFolderBuilder(
        folder, run_id=run_id, world_size=ranks, params={"note": HOSTILE, "lr": 3e-4}
    )
    for rank in range(ranks):
        _steps(run, rank, steps, wait + 12 * (rank == ranks - 1))
        run.process(
            60 * S,
            rank=rank,
            world_size=ranks,
            result=json.dumps({"answer": HOSTILE}),
            has_gpu=True,
        )
        _profiled(run, rank)
        run.mark(f"mark {ENDING}", 2 * S, 20, rank=rank)
        run.mark("lr halved", 3 * S, 30, rank=rank)
        _grown(run, rank)
        for at in range(0, 60, 5):
            _readings(run, rank, at)
    for at in range(0, 60, 2):
        row = {"rank": 0, "restart": 0, "phase": "train", "number": at}
        run.row("values", name=ENDING, time_ns=START + at * S, value=2.0 - at / 60, **row)
    return run


def _steps(run: RunFolderBuilder, rank: int, steps: int, wait: int) -> None:
    at = S
    for n in range(steps):
        parts = {
            "data.load": wait * MS + n % 5 * MS,
            HOSTILE: 30 * MS,
            "backward": (90 if n == 40 else 20) * MS,
            ENDING: 5 * MS,
        }
        run.step(n, at, parts, own=2 * MS, samples=32, rank=rank, epoch=2 * n // steps)
        at = run.steps[-1]["end_ns"] - START
        if n == steps // 2 - 1:
            run.outside("validate", 200 * MS, start_ns=START + at, rank=rank, category="phase")
            at += 200 * MS
            run.outside("checkpoint", 100 * MS, start_ns=START + at, rank=rank)
            at += 100 * MS


def _profiled(run: RunFolderBuilder, rank: int) -> None:
    collate = [
        HotSpot(
            name=HOSTILE, file=f"/srv/team/{ENDING}/collate.py", line=14, calls=40,
            own_ns=24 * MS, total_ns=30 * MS,
        ),
        HotSpot(name="built-in method builtins.len", calls=900, own_ns=6 * MS, total_ns=6 * MS),
    ]  # fmt: skip
    run.profiled("collate", *collate, rank=rank, duration_ns=40 * MS, passed_over=2)
    kept = HotSpot(file="/srv/team/project/loaders/history.py", line=33, kept_bytes=3000, blocks=12)
    run.profiled(
        "remember", kept, rank=rank, kind="memory", duration_ns=9 * MS, kept_bytes=4000,
        peak_bytes=9000,
    )  # fmt: skip


def _grown(run: RunFolderBuilder, rank: int) -> None:
    rows = [
        GrowthRow(what="type", name=HOSTILE, count=40, bytes=4000, now_count=50, now_bytes=5000),
        GrowthRow(
            what="site", file=f"/srv/team/{ENDING}/keep.py", line=7, count=3, bytes=3000,
            now_count=3, now_bytes=3000,
        ),
        GrowthRow(
            what="tensor", name="float32 [64] on cuda:0, with its graph", count=9, bytes=2304,
            now_count=9, now_bytes=2304,
        ),
    ]  # fmt: skip
    run.grown(*rows, rank=rank, bytes=4000, tensor_bytes=2304, resident_bytes=5000, steps=9)


def _readings(run: RunFolderBuilder, rank: int, at: int) -> None:
    gpu = {names.HW_ID: f"GPU-{rank}", names.HW_NAME: f"gpu{rank}", names.HW_TYPE: "gpu"}
    for metric, labels, value in (
        (names.PROCESS_MEMORY, {names.PROCESS_ROLE: "main"}, (2 + at / 60) * GIB),
        (names.GPU_UTILIZATION, gpu | {names.HW_GPU_TASK: "general"}, 0.5 + at / 200),
        (names.GPU_MEMORY_USAGE, gpu, (40 + rank) * GIB),
    ):
        run.row(
            "readings",
            rank=rank,
            restart=0,
            name=metric.name,
            labels=json.dumps(labels),
            time_ns=START + at * S + rank * MS,
            value=float(value),
        )
