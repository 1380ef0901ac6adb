"""Runs of known steps, to be compared."""

from __future__ import annotations

import numpy as np
import pytest
from run_folders import MS, RunFolderBuilder, S

from otel_mlperf.store.run_folders import read_run


@pytest.fixture
def made(tmp_path):
    """Builds a run of 300 steps: factors of its sections, and more; gives its folder."""
    numbers = iter(range(1, 100))

    def make(seed=1, ranks=1, count=300, rare=None, profiled=(), **factors):
        number = next(numbers)
        run = RunFolderBuilder(
            tmp_path, f"net{number}", f"{number:016x}", params=factors.pop("params", {})
        )
        rng = np.random.default_rng(seed)
        usual = {"data.load": 2.0, "forward": 10.0, "backward": 20.0, "optimizer": 5.0}
        at = 0
        for n in range(count):
            for rank in range(ranks):
                parts = {
                    name: int(ms * MS * factors.get(name, 1.0) * (1 + 0.03 * rng.standard_normal()))
                    for name, ms in usual.items()
                }
                if rare and n % rare == 0:
                    parts["log"] = 3 * MS
                kept = "profiled" if n in profiled else None
                run.step(n, at, parts, own=MS, rank=rank, samples=32, kept=kept)
            at += 40 * MS
        for rank in range(ranks):
            run.process(at + S, rank=rank, world_size=ranks, result='{"accuracy": 0.9}')
        return read_run(run.write())

    return make
