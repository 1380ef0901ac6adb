"""Fills shared memory after its first steps, then records sections in a child."""

from __future__ import annotations

import contextlib
import os

import otel_mlperf as om


def main() -> None:
    run = om.start("forked", console=False)
    for _ in om.steps(range(3)):
        pass
    with contextlib.suppress(OSError):
        filler = os.open("/dev/shm/filler", os.O_CREAT | os.O_WRONLY)
        while True:
            os.write(filler, bytes(4096))
    child = os.fork()
    if not child:
        for _ in range(1000):
            with om.span("in_child"):
                pass
        os._exit(0)
    os.waitpid(child, 0)
    run.stop()


if __name__ == "__main__":
    main()
