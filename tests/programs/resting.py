"""A rank that holds memory, has a worker that works a little, and makes steps until input comes."""

from __future__ import annotations

import argparse
import os
import select
import sys
import time

import otel_mlperf as om


def work_a_little() -> None:
    """What a DataLoader worker does, until its parent has gone."""
    parent = os.getppid()
    while os.getppid() == parent:
        sum(range(50_000))
        time.sleep(0.02)
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hold", type=int, default=100 << 20)
    given = parser.parse_args()
    held = bytearray(os.urandom(1 << 20)) * (given.hold >> 20)
    if not os.fork():
        work_a_little()
    with om.start("resting") as run:
        print(run.id, os.getpid(), flush=True)
        for _ in om.steps(iter(int, 1)):
            if select.select([sys.stdin], [], [], 0.05)[0]:
                break
    del held


if __name__ == "__main__":
    main()
