"""What do simulated ranks send to? The files of ``deploy/cluster`` without Kafka.

A node's Collector, two gateways, a consumer, Jaeger with Badger and Prometheus by remote write.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import urllib3

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from cluster import chain  # noqa: E402 - found by the line above
from servers.running import Jaeger, free_ports  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence


class Collector(chain.Collector):
    """One with some of the shipped files, and some of this folder."""

    def __init__(
        self, folder: Path, files: Sequence[str], more: Sequence[str] = (), **variables: str
    ) -> None:
        super().__init__(folder, files, **variables)
        self._command += [f"--config={HERE}/{name}.yaml" for name in more]

    def used(self) -> tuple[float, int]:
        """CPU seconds since its start, and memory now."""
        assert self._process is not None
        process = psutil.Process(self._process.pid)
        times = process.cpu_times()
        return times.user + times.system, process.memory_info().rss

    def counted(self, *beginnings: str) -> float:
        """The sum of its own counters whose names begin so."""
        lines = urllib3.request("GET", self.metrics, timeout=30.0).data.decode().splitlines()
        found = [line for line in lines if line.startswith(beginnings)]
        return sum(float(line.rpartition(" ")[2]) for line in found)


class Collectors:
    """All of them, running while it is entered."""

    def __init__(self) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="otel_mlperf-scale-")
        self.prometheus = chain.Prometheus(self._new("prometheus"))
        self.jaeger = Jaeger(self._new("jaeger"), free_ports(1)[0], self.prometheus.url)
        self.consumer = Collector(
            self._new("consumer"),
            ["consumer"],
            ["from_gateways"],
            JAEGER_OTLP=self.jaeger.otlp_address,
            REMOTE_WRITE=f"{self.prometheus.url}/api/v1/write",
        )
        self.gateways = [
            Collector(
                self._new("gateway"), ["gateway"], ["to_consumer"], CONSUMER=self.consumer.otlp_grpc
            )
            for _ in range(2)
        ]
        listed = ", ".join(gateway.otlp_grpc for gateway in self.gateways)
        files = ["node", "gateways-static"]
        self.node = Collector(self._new("node"), files, ["in_detail"], GATEWAYS=f"[{listed}]")
        self._all = [self.prometheus, self.jaeger, self.consumer, *self.gateways, self.node]

    def __enter__(self) -> Collectors:
        for server in self._all:
            server.start()
        return self

    def __exit__(self, *_: object) -> None:
        for server in reversed(self._all):
            server.kill()
        self._home.cleanup()

    def _new(self, name: str) -> Path:
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self._home.name))
