"""How much of a core does the agent take for readings alone, by level?

python tests/bench/readings.py

Ranks that rest, each with a worker, and scripted GPUs: what the agent uses beside level ``none`` is
for readings, from the sensor to the run folder and to a server. Levels are taken in shuffled order,
``none`` twice in each round. Asking a real driver costs more than asking the scripted one.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import contextmanager
from pathlib import Path

from agent_cost import find_agent
from overhead import sink

sys.path.append(str(Path(__file__).parents[1]))
from nvml.scripted import Script, build

PROGRAM = Path(__file__).parents[1] / "programs" / "resting.py"
ROWS = ("none", "none, A/A", "basic", "detailed", "comprehensive")
WARM_UP_S = 8.0


@contextmanager
def resting(folder, address, ranks, seen, level):
    """Ranks of one run: its id."""
    run_id = uuid.uuid4().hex
    variables = seen | {
        "OTEL_EXPORTER_OTLP_ENDPOINT": address,
        "OTEL_MLPERF_CONSOLE": "false",
        "OTEL_MLPERF_DIR": str(folder),
        "OTEL_MLPERF_READINGS": level,
        "OTEL_MLPERF_RUN_ID": run_id,
        "WORLD_SIZE": str(ranks),
    }
    jobs = [
        subprocess.Popen(
            [sys.executable, PROGRAM, "--hold", str(1 << 20)],
            env=variables | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        for job in jobs:
            job.stdout.readline()
        yield run_id
    finally:
        for job in jobs:
            job.communicate("end\n")


def measure(run_id, seconds):
    """Share of a core that the run's agent takes, and resident MiB at the end."""
    time.sleep(WARM_UP_S)  # by then the agents of other ranks have left it to one
    agent = find_agent(run_id)
    before, began = sum(agent.cpu_times()[:2]), time.monotonic()
    time.sleep(seconds)
    share = (sum(agent.cpu_times()[:2]) - before) / (time.monotonic() - began)
    return share, agent.memory_info().rss / 2**20


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--gpus", type=int, default=1)
    given = parser.parse_args()
    found = {row: [] for row in ROWS}
    with sink() as address, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        script = Script(Path(folder) / "gpus.script", given.gpus)
        seen = script.environment(build(Path(folder)))
        for _ in range(given.rounds):
            for row in random.sample(ROWS, len(ROWS)):
                level = row.split(",")[0]
                with resting(folder, address, given.ranks, seen, level) as run:
                    found[row].append(measure(run, given.seconds))
    print(f"\n{given.ranks} ranks with a worker each, {given.gpus} GPUs")
    print("\n| readings | CPU, % of a core | beside none | resident MiB |")
    print("|---|---:|---:|---:|")
    base = statistics.median(share for share, _ in found["none"])
    for row, measured in found.items():
        share = statistics.median(share for share, _ in measured)
        memory = statistics.median(memory for _, memory in measured)
        print(f"| {row} | {100 * share:.2f} | {100 * (share - base):+.2f} | {memory:.0f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
