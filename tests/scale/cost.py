"""What does a rank cost, of 1 to 4,096: requests, points, series, bytes, CPU and memory?

    python tests/scale/cost.py --ranks 1 8 64 512 4096

Ranks, agents and Collectors are real processes; a node has a host name and shared memory of its
own, which takes root or user namespaces. A few nodes run at once, one wave after the other; of a
run of more nodes than ``--nodes`` only so many run, and the table says so.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import urllib3

sys.path.insert(0, str(Path(__file__).parents[1]))

from runs import ending, environment
from scale.collectors import Collectors

NODE = 8
"""Ranks of a node."""
INTERVAL_S = 5.0
"""Between two deliveries of metrics: in a run's first minutes, by default."""
_HEAD = (
    "ranks", "nodes run", "requests", "points", "spans", "kB", "series of a rank",
    "agent CPU", "agent memory", "Collector CPU", "gateways' CPU", "gateway memory",
)  # fmt: skip
_MIB = 1 << 20
_UNSHARE = ["unshare", "--uts", "--mount", *(["--map-root-user"] if os.getuid() else [])]
_SPANS = ("otelcol_receiver_accepted_spans",)
_POINTS = ("otelcol_receiver_accepted_metric_points",)
_REQUESTS = ("http_server_request_body_size_count",)
_BYTES = ("http_server_request_body_size_sum",)


class Node:
    """One that runs ``node.py``."""

    def __init__(self, number: int, ranks: int, world: int, run_id: str, runs: Path, to: str):
        self.ranks = ranks
        words = [f"node{number}", run_id, number * NODE, ranks, world]
        program = str(Path(__file__).parent / "node.py")
        self.process = subprocess.Popen(
            [*_UNSHARE, sys.executable, program, *map(str, words)],
            env=environment(runs, OTEL_EXPORTER_OTLP_ENDPOINT=to),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def heard(self) -> dict[str, Any]:
        """What it says next."""
        assert self.process.stdout is not None
        return dict(json.loads(self.process.stdout.readline()))

    def used(self) -> dict[str, Any]:
        """What its agent has used by now."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.heard()

    def end(self) -> dict[str, Any]:
        """Ends ranks and agent; what that one has used in all."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.stdin = None  # nobody is to write what is left in it
        said = self.heard()
        self.process.wait()
        return said


@dataclass
class Cost:
    """What was counted while ranks made steps, and by how many of them."""

    rank_intervals: float = 0.0
    counts: dict[str, float] = field(default_factory=dict)
    agent_bytes: list[int] = field(default_factory=list)
    gateway_bytes: int = 0

    def add(self, before: dict[str, float], after: dict[str, float]) -> None:
        """Takes in what was counted between two looks."""
        for name, value in after.items():
            self.counts[name] = self.counts.get(name, 0.0) + value - before[name]

    def each(self, name: str) -> float:
        """Of a rank and interval."""
        return self.counts[name] / self.rank_intervals


def look(collectors: Collectors, nodes: list[Node], cost: Cost) -> dict[str, float]:
    """What all have counted and used by now."""
    agents = [node.used() for node in nodes]
    cost.agent_bytes += [agent["memory_bytes"] for agent in agents]
    gateways = [gateway.used() for gateway in collectors.gateways]
    cost.gateway_bytes = max(cost.gateway_bytes, *(memory for _, memory in gateways))
    node = collectors.node
    return {
        "requests": node.counted(*_REQUESTS),
        "points": node.counted(*_POINTS),
        "spans": node.counted(*_SPANS),
        "bytes": node.counted(*_BYTES),
        "agent": sum(agent["cpu_s"] for agent in agents),
        "node": node.used()[0],
        "gateways": sum(cpu_s for cpu_s, _ in gateways),
        "at": time.monotonic(),
    }


def run_wave(collectors: Collectors, nodes: list[Node], seconds: float, cost: Cost) -> None:
    """Looks twice at nodes that make steps, and ends them."""
    with ending([node.process for node in nodes]):
        for node in nodes:
            node.heard()
        before = look(collectors, nodes, cost)
        time.sleep(seconds)
        after = look(collectors, nodes, cost)
        cost.add(before, after)
        ranks = sum(node.ranks for node in nodes)
        cost.rank_intervals += ranks * (after["at"] - before["at"]) / INTERVAL_S
        for node in nodes:
            node.end()


def row(collectors: Collectors, ranks: int, most: int, at_once: int, seconds: float) -> list[str]:
    """The cells of a run of so many ranks."""
    cost, run_id = Cost(), os.urandom(16).hex()
    all_nodes = -(-ranks // NODE)
    # Of more nodes than are run, those at the beginning and at the end.
    few = min(all_nodes, most)
    numbers = [*range(few - few // 2), *range(all_nodes - few // 2, all_nodes)]
    series = head_series(collectors)
    run_ranks = 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as runs:
        for at in range(0, few, at_once):
            nodes = [
                Node(
                    number, min(NODE, ranks - number * NODE), ranks, run_id, Path(runs),
                    collectors.node.otlp_http,
                )
                for number in numbers[at : at + at_once]
            ]  # fmt: skip
            run_ranks += sum(node.ranks for node in nodes)
            run_wave(collectors, nodes, seconds, cost)
        time.sleep(INTERVAL_S)
    series = head_series(collectors) - series
    interval = 1000 / INTERVAL_S
    return [
        f"{ranks:,}", f"{few} of {all_nodes}", f"{cost.each('requests'):.2f}",
        f"{cost.each('points'):.1f}", f"{cost.each('spans'):.2f}",
        f"{cost.each('bytes') / 1000:.2f}", f"{series / run_ranks:.1f}",
        f"{cost.each('agent') * interval:.1f} ms/s",
        f"{max(cost.agent_bytes) / _MIB:.0f} MiB",
        f"{cost.each('node') * interval:.2f} ms/s",
        f"{cost.each('gateways') * interval:.2f} ms/s", f"{cost.gateway_bytes / _MIB:.0f} MiB",
    ]  # fmt: skip


def head_series(collectors: Collectors) -> float:
    """How many series Prometheus has in memory."""
    url = f"{collectors.prometheus.url}/metrics"
    lines = urllib3.request("GET", url, timeout=30.0).data.decode().splitlines()
    (line,) = [line for line in lines if line.startswith("prometheus_tsdb_head_series ")]
    return float(line.split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 8, 64, 512, 4096])
    parser.add_argument("--nodes", type=int, default=16, help="of a run, at most")
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20.0, help="in which it is counted")
    given = parser.parse_args()
    if subprocess.run([*_UNSHARE, "true"], check=False).returncode:
        raise SystemExit("a node has a host name of its own: run as root, or allow user namespaces")
    print(f"| {' | '.join(_HEAD)} |\n|{'---:|' * len(_HEAD)}")
    with ExitStack() as stack:
        collectors = stack.enter_context(Collectors())
        for ranks in given.ranks:
            cells = row(collectors, ranks, given.nodes, given.at_once, given.seconds)
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
