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


def find_agent(run_id):
    """The agent that reads the run's journals."""
    for process in psutil.process_iter(["cmdline"]):
        words = " ".join(process.info["cmdline"] or ())
        if "otel_mlperf.agent" in words and run_id in words:
            return process
    raise LookupError(f"no agent reads the journals of {run_id}")


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
    with sink() as address, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ |= {"OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_MLPERF_CONSOLE": "false"}
        with om.start("agent-cost", dir=folder) as run:
            train_for(WARM_UP_S)
            agent = find_agent(run.id)
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
