"""What does a test see of the servers that run for it?"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servers import answers
from servers.running import Collector, Jaeger, Prometheus, free_ports

if TYPE_CHECKING:
    from servers.answers import Exemplar, JaegerSpan, Sample


class Stack:
    """Collector, Jaeger and Prometheus on loopback, wired to each other by the shipped files."""

    def __init__(self, folder: Path) -> None:
        port, jaeger_metrics, collector_metrics = free_ports(3)
        targets = {
            "collector": f"127.0.0.1:{collector_metrics}",
            "jaeger": f"127.0.0.1:{jaeger_metrics}",
            "prometheus": f"127.0.0.1:{port}",
        }
        self._folder = folder
        self.prometheus_server = Prometheus(self._new("prometheus"), port, targets)
        self.jaeger_server = Jaeger(self._new("jaeger"), jaeger_metrics, self.prometheus_server.url)
        self.collector = self.another_collector(collector_metrics)
        self.otlp_endpoint = self.collector.otlp_endpoint
        self.jaeger = self.jaeger_server.url
        self.prometheus = self.prometheus_server.url

    def another_collector(self, metrics_port: int | None = None) -> Collector:
        """One more Collector, not started yet, before the same Jaeger and Prometheus."""
        return Collector(
            self._new("collector"), self.jaeger_server, self.prometheus_server, metrics_port
        )

    def start(self) -> None:
        """Starts all three; ready when it returns."""
        for server in (self.prometheus_server, self.jaeger_server, self.collector):
            server.start()

    def stop(self) -> None:
        """Stops all three, the one that sends to the others first."""
        for server in (self.collector, self.jaeger_server, self.prometheus_server):
            server.stop()

    def jaeger_services(self) -> list[str]:
        """The services that Jaeger has spans of."""
        return answers.jaeger_services(self.jaeger)

    def jaeger_trace(self, trace_id: str) -> list[JaegerSpan]:
        """Every span of a trace (32 hex digits), none when Jaeger does not know it."""
        return answers.jaeger_trace(self.jaeger, trace_id)

    def jaeger_search(self, fields: dict[str, str]) -> set[str]:
        """The ids of the traces that a search of Jaeger's page finds."""
        return answers.jaeger_search(self.jaeger, fields)

    def promql(self, query: str, at: float | None = None) -> list[Sample]:
        """The answer to an instant query, at a Unix time or now."""
        return answers.promql(self.prometheus, query, at)

    def promql_exemplars(self, query: str, seconds: float = 3600.0) -> list[Exemplar]:
        """The exemplars of the last ``seconds`` in the series that ``query`` names."""
        now = time.time()
        return answers.promql_exemplars(self.prometheus, query, now - seconds, now + 60)

    def rules(self) -> list[dict[str, Any]]:
        """The alert rules, with what Prometheus says of each."""
        return answers.prometheus_rules(self.prometheus)

    def prometheus_targets(self) -> dict[str, str]:
        """Where Prometheus scrapes which component of the stack."""
        return answers.prometheus_targets(self.prometheus)

    def _new(self, name: str) -> Path:
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self._folder))
