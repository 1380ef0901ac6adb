"""A loop of steps that ends as it is told and counts for itself what it recorded.

The count is in a mapped file, so that it survives whatever ends the process.
"""

from __future__ import annotations

import argparse
import gc
import mmap
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import otel_mlperf as om

if TYPE_CHECKING:
    from collections.abc import Iterator


def counting(path: str) -> memoryview:
    """Words of the file: sections finished, steps finished, tokens counted."""
    Path(path).write_bytes(bytes(24))
    with open(path, "r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), 24)).cast("Q")


def rounds(most: int, until: str) -> Iterator[int]:
    """Numbers until there is a file ``until``, or nobody is left to make it."""
    parent = os.getppid()
    for i in range(most):
        if os.path.exists(until) or os.getppid() != parent:
            return
        yield i


def end(how: str) -> None:
    """Ends the process in the way that a test asks for, or returns."""
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "terminate":
        os.kill(os.getpid(), signal.SIGTERM)
    elif how == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
    elif how == "exit":
        os._exit(7)
    elif how == "exception":
        raise RuntimeError("the loss is not finite")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", required=True)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--end", default="finish")
    parser.add_argument("--until", default="")
    given = parser.parse_args()
    gc.disable()  # long collections would be sections beside those that are counted here
    words = counting(given.count)
    tokens = om.counter("tokens", unit="{token}")
    with om.start("loop"):
        numbers = rounds(given.steps, given.until) if given.until else range(given.steps)
        for i in om.steps(numbers):
            words[0] += 1 + (i > 0)  # data.load, and the step before
            words[1] += i > 0
            with om.span("forward"):
                time.sleep(given.pause)
                if i == given.steps - 1:
                    end(given.end)
            words[0] += 1
            with om.span("backward"):
                tokens.add(3)
                words[2] += 3
            words[0] += 1
            om.log(loss=1.0 / (i + 1))
    words[0] += 2  # the last step and the run
    words[1] += 1


if __name__ == "__main__":
    main()
    sys.exit(0)
