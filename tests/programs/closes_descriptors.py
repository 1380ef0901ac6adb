"""A loop whose program closes descriptors that it has not opened, and opens files of its own."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import otel_mlperf as om

STEPS = 100, 300


def steps(count: int) -> None:
    for _ in om.steps(range(count)):
        with om.span("work"):
            time.sleep(0.005)


def main(how: str, folder: str) -> None:
    run = om.start("closing")
    steps(STEPS[0])
    if how == "all":
        os.closerange(3, 4096)
    else:
        # The kernel drops the lock of the process with any descriptor of the file.
        Path(run._recorder.journal.path).read_bytes()
    files = [open(f"{folder}/own-{n}", "w+b", buffering=0) for n in range(12)]  # noqa: SIM115
    for file in files:
        file.write(b"precious")
    steps(STEPS[1])
    run.stop()
    for file in files:
        file.write(b" data")
        file.seek(0)
        assert file.read() == b"precious data"
    print("intact")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
