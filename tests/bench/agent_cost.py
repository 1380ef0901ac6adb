"""How much of a core and of the memory does the agent take at 1,000 spans a second?

python tests/bench/agent_cost.py
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time

import psutil
from overhead import sink

import otel_mlperf as om

STEPS_A_SECOND = 100
SPANS_A_STEP = 10
WARM_UP_S = 10
MEASURED_S = 30


def find_agent():
    """The agent of this process's run: the program that was started last among its likes."""
    likes = [
        process
        for process in psutil.process_iter(["cmdline", "create_time"])
        if {"agent", "otel_mlperf"} <= set(process.info["cmdline"] or ())
    ]
    return max(likes, key=lambda process: process.info["create_time"])


def train_for(seconds, note=lambda: None):
    """Steps at the wanted rate, with a note taken once a second."""
    start = time.monotonic()
    for n in range(round(seconds * STEPS_A_SECOND)):
        with om.step():
            for _ in range(SPANS_A_STEP - 1):
                with om.span("piece"):
                    pass
        if n % STEPS_A_SECOND == 0:
            note()
        time.sleep(max(0, start + (n + 1) / STEPS_A_SECOND - time.monotonic()))


def main():
    with sink() as address, tempfile.TemporaryDirectory() as folder:
        os.environ |= {"OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_MLPERF_CONSOLE": "false"}
        with om.start("agent-cost", dir=folder):
            train_for(WARM_UP_S)
            agent = find_agent()
            memory = []
            before, start = sum(agent.cpu_times()[:2]), time.monotonic()
            train_for(MEASURED_S, lambda: memory.append(agent.memory_info().rss / 2**20))
            share = (sum(agent.cpu_times()[:2]) - before) / (time.monotonic() - start)
    print(f"\n| agent at {STEPS_A_SECOND * SPANS_A_STEP:,} spans/s, OTLP and run folder | |")
    print("|---|---:|")
    print(f"| CPU | {100 * share:.1f} % of a core |")
    print(f"| resident memory, median | {statistics.median(memory):.0f} MiB |")
    print(f"| resident memory, most | {max(memory):.0f} MiB |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
