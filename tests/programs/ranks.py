"""One of several ranks with the same seed, which counts its steps and waits for the others.

It is meant for a launcher, and runs alone as well.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from pathlib import Path

import otel_mlperf as om


def meet(folder: Path, place: str) -> None:
    """Returns when every rank is here; needs no process group. Without its launcher it ends."""
    launcher = os.getppid()
    (folder / f"{place}-{os.environ.get('RANK', '0')}").touch()
    while len(list(folder.glob(f"{place}-*"))) < int(os.environ.get("WORLD_SIZE", "1")):
        if os.getppid() != launcher:
            os._exit(1)
        time.sleep(0.01)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--meet", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=20)
    given = parser.parse_args()
    random.seed(0)
    with om.start("ranks"):
        for _ in om.steps(range(given.steps)):
            with om.span("forward"):
                random.random()
            with om.span("backward"):
                random.random()
        meet(given.meet, "end")


if __name__ == "__main__":
    main()
