"""How does the whole chain start on loopback with the files of ``deploy/cluster``?"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cluster import engines
from servers import build
from servers.running import DEPLOY, Server, free_ports

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cluster.machines import Machine

CLUSTER = DEPLOY / "cluster"
TAIL_WAIT_S = 5


class Place(NamedTuple):
    """Where a Collector runs and listens."""

    address: str = "127.0.0.1"
    grpc_port: int = 0
    """That of other Collectors, at other addresses of the same name; 0: any that is free."""
    inside: tuple[str, ...] = ()
    """What a command begins with to be run there."""


HERE = Place()


class Collector(Server):
    """One Collector with some of the shipped files; started again, it has the same ports."""

    def __init__(
        self, folder: Path, files: Sequence[str], place: Place = HERE, **variables: str
    ) -> None:
        http, grpc, health, metrics = free_ports(4)
        host = place.address
        self.otlp_http = f"http://{host}:{http}"
        self.otlp_grpc = f"{host}:{place.grpc_port or grpc}"
        self.metrics = f"http://{host}:{metrics}/metrics"
        super().__init__(
            [
                *place.inside,
                build.program(engines.COLLECTOR, "otelcol"),
                *(f"--config={CLUSTER}/collector/{name}.yaml" for name in files),
            ],
            {
                "COLLECTOR_OTLP_HTTP": f"{host}:{http}",
                "COLLECTOR_OTLP_GRPC": self.otlp_grpc,
                "COLLECTOR_HEALTH": f"{host}:{health}",
                "COLLECTOR_METRICS_HOST": host,
                "COLLECTOR_METRICS_PORT": str(metrics),
                "COLLECTOR_QUEUE": str(folder / "queue"),
                "TAIL_DECISION_WAIT": f"{TAIL_WAIT_S}s",
            }
            | variables,
            f"http://{host}:{health}/",
            folder,
        )


class Jaeger(Server):
    """Jaeger with the shipped file, on OpenSearch."""

    def __init__(self, folder: Path, opensearch: str) -> None:
        otlp, query, query_grpc, health, metrics = free_ports(5)
        self.url = f"http://127.0.0.1:{query}"
        self.otlp_grpc = f"127.0.0.1:{otlp}"
        super().__init__(
            [build.program(build.JAEGER, "jaeger"), f"--config={CLUSTER}/jaeger/config.yaml"],
            {
                "JAEGER_OTLP_GRPC": self.otlp_grpc,
                "JAEGER_QUERY_HTTP": f"127.0.0.1:{query}",
                "JAEGER_QUERY_GRPC": f"127.0.0.1:{query_grpc}",
                "JAEGER_HEALTH": f"127.0.0.1:{health}",
                "JAEGER_METRICS_HOST": "127.0.0.1",
                "JAEGER_METRICS_PORT": str(metrics),
                "OPENSEARCH": f'["{opensearch}"]',
            },
            f"http://127.0.0.1:{health}/status",
            folder,
        )


class Prometheus(Server):
    """Prometheus, which takes remote write and scrapes nothing."""

    def __init__(self, folder: Path) -> None:
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        shutil.copy(CLUSTER / "prometheus" / "prometheus.yml", folder)
        shutil.copy(DEPLOY / "prometheus" / "rules.yaml", folder)
        super().__init__(
            [
                build.program(build.PROMETHEUS, "prometheus"),
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address=127.0.0.1:{port}",
                "--web.enable-remote-write-receiver",
                "--enable-feature=exemplar-storage",
            ],
            {},
            f"{self.url}/-/ready",
            folder,
        )


class Chain:
    """A node's Collector, two gateways, Kafka, a consumer, Jaeger on OpenSearch, Prometheus."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.kafka = engines.Kafka(self._new("kafka"))
        self.opensearch = engines.OpenSearch(self._new("opensearch"))
        self.jaeger = Jaeger(self._new("jaeger"), self.opensearch.url)
        self.prometheus = Prometheus(self._new("prometheus"))
        self.consumer = self._consumer()
        self.gateways = [self.gateway() for _ in range(2)]
        self.node = self.node_before(self.gateways)

    @property
    def servers(self) -> list[Server]:
        """All of them, those that others need first."""
        stores = [self.kafka, self.opensearch, self.jaeger, self.prometheus]
        return [*stores, self.consumer, *self.gateways, self.node]

    def gateway(self, *more: str, place: Place = HERE) -> Collector:
        """A gateway before this Kafka, not started yet."""
        kafka = f"[{self.kafka.address}]"
        return Collector(self._new("gateway"), ["gateway", *more], place, KAFKA_BROKERS=kafka)

    def gateways_at(self, addresses: Sequence[str], port: int) -> list[Collector]:
        """A gateway at each address, all at one port, as behind one name; not started yet."""
        return [self.gateway(place=Place(address, port)) for address in addresses]

    def replaying(self) -> Collector:
        """A consumer that reads all that Kafka keeps, not started yet."""
        return self._consumer(KAFKA_GROUP=os.urandom(8).hex())

    def part(self, name: str) -> Server:
        """One of them by its name; of the gateways the first."""
        return self.gateways[0] if name == "gateway" else getattr(self, name)

    def node_before(self, gateways: Sequence[Collector]) -> Collector:
        """A node's Collector that knows these gateways, not started yet."""
        listed = ", ".join(one.otlp_grpc for one in gateways)
        return Collector(self._new("node"), ["node", "gateways-static"], GATEWAYS=f"[{listed}]")

    def node_on(self, machine: Machine, name: str, port: int) -> Collector:
        """A machine's Collector that finds gateways by their name, not started yet."""
        files = ["node", "gateways-dns"]
        place = Place(machine.address, inside=tuple(machine.inside))
        return Collector(
            self._new("node"), files, place, GATEWAYS_NAME=name, GATEWAYS_PORT=str(port)
        )

    def start(self) -> None:
        """Starts all; ready when it returns."""
        for server in self.servers:
            server.start()

    def stop(self) -> None:
        """Stops all, those that send to others first."""
        for server in reversed(self.servers):
            server.kill()

    def _consumer(self, **variables: str) -> Collector:
        return Collector(
            self._new("consumer"),
            ["consumer"],
            KAFKA_BROKERS=f"[{self.kafka.address}]",
            JAEGER_OTLP=self.jaeger.otlp_grpc,
            REMOTE_WRITE=f"{self.prometheus.url}/api/v1/write",
            **variables,
        )

    def _new(self, name: str) -> Path:
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self._folder))


def reachable_folder() -> Path:
    """A new folder that another user can reach, unlike those that pytest makes."""
    folder = Path(tempfile.mkdtemp(prefix="otel_mlperf-cluster-"))
    os.chmod(folder, 0o711)
    return folder
