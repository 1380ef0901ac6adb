"""What does the sensor say in a process of its own?

Reads questions from stdin and writes answers to stdout, one JSON value a line: ``read`` (a pass,
waited for), ``begin`` and ``take`` (the same in two), ``wait S`` (moves the clock), ``devices``,
``log``, ``cost N`` (nanoseconds of each of N passes).
"""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path

from otel_mlperf.sensors.gpus.nvidia.nvidia_gpus import NVIDIA
from otel_mlperf.sensors.gpus.vendors import Gpus
from otel_mlperf.sensors.sensor_kind import Surroundings

DEADLINE_S = 30
"""Longer than a pass takes on the busiest machine: only a clock that is moved gets past it."""


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Log(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")


class Questions:
    def __init__(self, options: dict) -> None:
        pids, proc = options.pop("pids", ()), Path(options.pop("proc", "/proc"))
        self._clock, self._log = Clock(), Log()
        logging.getLogger("otel_mlperf").addHandler(self._log)
        logging.getLogger("otel_mlperf").setLevel(logging.INFO)
        level = options.pop("level", "detailed")
        here = Surroundings(level, pids=lambda: pids, proc=proc, clock=self._clock)
        timed = Gpus(here, {"nvidia": lambda: NVIDIA}, deadline_s=DEADLINE_S)
        self._gpus = timed
        self.read, self.begin, self.take, self.close = (
            timed.read,
            timed.begin,
            timed.take,
            timed.close,
        )

    def wait(self, seconds: float) -> float:
        self._clock.now_s += seconds
        return self._clock.now_s

    def devices(self) -> tuple:
        return self._gpus.devices()

    def log(self) -> list[str]:
        return self._log.lines

    def cost(self, passes: int) -> list[int]:
        costs = []
        for _ in range(passes):
            began_ns = time.perf_counter_ns()
            self._gpus.read()
            costs.append(time.perf_counter_ns() - began_ns)
        return costs


def main() -> None:
    questions = Questions(json.loads(sys.argv[1]))
    for line in sys.stdin:
        what, *details = json.loads(line)
        print(json.dumps(getattr(questions, what)(*details)), flush=True)
    questions.close()


main()
