"""How much of a core and of the memory does the agent take at 1,000 spans a second?

Each name of a section has a histogram of its own, in the tables and at the server: so one run has
nine sections of one name in each step, another one each of nine names, a third as many requests.

python tests/bench/agent_cost.py [--seconds 30]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time

import psutil
from overhead import sink

import otel_mlperf as om

STEPS_A_SECOND = 100
PIECES = 9
WARM_UP_S = 10
MEASURED_S = 30


def find_agent(run_id):
    """The agent that reads the run's journals."""
    for process in psutil.process_iter(["cmdline"]):
        words = " ".join(process.info["cmdline"] or ())
        if "otel_mlperf.agent" in words and run_id in words:
            return process
    raise LookupError(f"no agent reads the journals of {run_id}")


def one_name():
    """A step with nine sections alike."""
    with om.step():
        for _ in range(PIECES):
            with om.span("piece"):
                pass


def nine_names():
    """A step with nine sections of different names."""
    with om.step():
        for number in range(PIECES):
            with om.span(f"piece{number}"):
                pass


def requests():
    """Ten requests with a bound, instead of a step with nine sections."""
    for _ in range(PIECES + 1):
        with om.request("predict", within_s=0.05):
            pass


def work_for(seconds, work, note=lambda: None):
    """A turn of the work at the wanted rate, with a note taken once a second."""
    start = time.monotonic()
    for n in range(round(seconds * STEPS_A_SECOND)):
        work()
        if n % STEPS_A_SECOND == 0:
            note()
        time.sleep(max(0, start + (n + 1) / STEPS_A_SECOND - time.monotonic()))


def measure(work, seconds, folder):
    """Share of a core, and resident memory in MiB each second."""
    with om.start("agent-cost", dir=folder) as run:
        work_for(WARM_UP_S, work)
        agent, memory = find_agent(run.id), []
        before, start = sum(agent.cpu_times()[:2]), time.monotonic()
        work_for(seconds, work, lambda: memory.append(agent.memory_info().rss / 2**20))
        return (sum(agent.cpu_times()[:2]) - before) / (time.monotonic() - start), memory


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=MEASURED_S)
    seconds = parser.parse_args().seconds
    with sink() as address, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ |= {"OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_MLPERF_CONSOLE": "false"}
        rows = {
            label: measure(work, seconds, folder)
            for label, work in (
                ("sections of one name", one_name),
                ("sections of nine names", nine_names),
                ("requests", requests),
            )
        }
    rate = STEPS_A_SECOND * (PIECES + 1)
    print(f"\n| agent at {rate:,} spans/s, OTLP and run folder | CPU | memory, median | most |")
    print("|---|---:|---:|---:|")
    for label, (share, memory) in rows.items():
        middle, most = statistics.median(memory), max(memory)
        print(f"| {label} | {100 * share:.1f} % of a core | {middle:.0f} MiB | {most:.0f} MiB |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
