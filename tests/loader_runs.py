"""A run whose DataLoaders were counted, for tests."""

from __future__ import annotations

import json
from typing import Any

from run_folders import MS, START, RunFolderBuilder

from otel_mlperf import names

_KEYS = {
    "worker": names.LOADER_WORKER,
    "part": names.LOADER_PART,
    "state": names.LOADER_WORKERS,
}


class LoaderRun(RunFolderBuilder):
    """A run with readings of its loaders."""

    def counted(
        self,
        metric: names.Metric,
        value: float,
        suffix: str = "",
        at: int = 0,
        rank: int = 0,
        restart: int = 0,
        dataset: str = "Pix",
        **labels: str,
    ) -> None:
        """One reading of a loader's metric."""
        about = {names.DATASET: dataset} | {_KEYS[key]: text for key, text in labels.items()}
        fields = {"rank": rank, "restart": restart, "name": metric.name + suffix}
        told = {"labels": json.dumps(about), "time_ns": START + at, "value": value}
        self.row("readings", **fields, **told)

    def fetched(
        self,
        worker: str,
        batches: int,
        items_s: float,
        collate_s: float,
        cpu_s: float | None = None,
        delay_s: float | None = None,
        **where: Any,
    ) -> None:
        """All that one worker has fetched."""
        self.counted(names.LOADER_FETCHED, batches, worker=worker, **where)
        for part, spent in (("items", items_s), ("collate", collate_s)):
            self.counted(names.LOADER_FETCH_TIME, spent, worker=worker, part=part, **where)
        for metric, used in ((names.LOADER_CPU, cpu_s), (names.LOADER_DELAY, delay_s)):
            if used is not None:
                self.counted(metric, used, worker=worker, **where)

    def passes(self, state: str, count: int, first_s: float, end_s: float = 0.0) -> None:
        """Passes with workers in that state, each with a first batch and an end of that time."""
        for metric, each in ((names.LOADER_FIRST_BATCH, first_s), (names.LOADER_END, end_s)):
            self.counted(metric, count, ".count", state=state)
            self.counted(metric, count * each, ".sum", state=state)

    def train(self, steps: int, wait_ms: float, work_ms: float, spacing_ms: float = 0.0) -> None:
        """Steps that wait for a batch and work, and what the program waited for in all."""
        for n in range(steps):
            parts = {"data.load": int(wait_ms * MS), "forward": int(work_ms * MS)}
            self.step(n, int(n * (wait_ms + work_ms + spacing_ms) * MS), parts)
        self.process(int(steps * (wait_ms + work_ms + spacing_ms) * MS))
        self.counted_batches(steps, steps * wait_ms)

    def counted_batches(self, batches: int, waited_ms: float) -> None:
        """What the program got, and how long it waited in all."""
        self.counted(names.LOADER_BATCHES, batches)
        self.counted(names.LOADER_WAIT, waited_ms / 1e3)

    def workers(self, *each: tuple[float, float, float | None], batches: int) -> None:
        """Workers (``main`` alone of one): milliseconds of a batch in samples, collate, CPU."""
        for number, (items_ms, collate_ms, cpu_ms) in enumerate(each):
            worker = str(number) if len(each) > 1 else "main"
            share = batches // len(each)
            used = None if cpu_ms is None else share * cpu_ms / 1e3
            self.fetched(worker, share, share * items_ms / 1e3, share * collate_ms / 1e3, used)

    def cpu_busy(self, share: float) -> None:
        """What share of all CPUs was busy."""
        for mode, part in (("idle", 1 - share), ("user", share)):
            labels = json.dumps({names.CPU_MODE: mode})
            name = names.SYSTEM_CPU_UTILIZATION.name
            for time_ns in (START, START + MS):  # one reading alone says nothing of a run
                row = {"name": name, "labels": labels, "time_ns": time_ns, "value": part}
                self.row("readings", rank=None, restart=0, **row)
