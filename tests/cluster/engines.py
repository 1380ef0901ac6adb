"""How do Kafka, OpenSearch and the chain's Collector get here, start on free ports, and stop?

They are fetched and built once, by checksum, into the cache that all servers of the tests share.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

from servers import build
from servers.running import Server, free_ports

COLLECTOR = build.Recipe("cluster_collector", ("otelcol",), build.COLLECTOR.command, 6)
KAFKA = build.Recipe("kafka", ("lib",), ("sh", "fetch.sh"), 2)
OPENSEARCH = build.Recipe("opensearch", ("opensearch",), ("sh", "fetch.sh"), 2)
KUBECTL = build.Recipe(
    "kubectl", ("kubectl",), ("go", "build", build.STRIP, "-o", "build/", "."), 3
)
NEEDED = {"java": "a Java runtime, 17 or newer", "mvn": "Maven", "go": "Go 1.26"}
NOBODY = 65534
SMALL = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]


def missing(*programs: str) -> str:
    """What keeps the chain, or what needs these alone, from running here; empty: nothing does."""
    absent = [NEEDED[one] for one in programs or NEEDED if shutil.which(one) is None]
    return f"this needs {' and '.join(absent)}, not found here" if absent else ""


class Kafka(Server):
    """One broker that is its own controller; killed and started again it has its data."""

    def __init__(self, folder: Path) -> None:
        self._port, controller = free_ports(2)
        self.address = f"127.0.0.1:{self._port}"
        properties = folder / "server.properties"
        properties.write_text(_PROPERTIES.format(self=self, controller=controller, folder=folder))
        java = ["java", "-Xms128m", "-Xmx256m", *SMALL]
        java += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        java += ["-cp", f"{build.program(KAFKA, 'lib')}/*"]
        identity = ["-t", "MkU3OEVBNTcwNTJENDM2Qk", "-c", str(properties)]
        subprocess.run(
            [*java, "kafka.tools.StorageTool", "format", "--standalone", *identity],
            check=True,
            capture_output=True,
        )
        super().__init__([*java, "kafka.Kafka", str(properties)], {}, "", folder)

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0


class OpenSearch(Server):
    """One node without plugins, as somebody else where the tests run as root, which it refuses."""

    def __init__(self, folder: Path) -> None:
        port, transport = free_ports(2)
        self.url = f"http://127.0.0.1:{port}"
        home = folder / "opensearch"
        shutil.copytree(build.program(OPENSEARCH, "opensearch"), home)
        (home / "config" / "opensearch.yml").write_text(
            f"http.port: {port}\ntransport.port: {transport}\n{_SETTINGS}"
        )
        command: list[str | Path] = ["bash", home / "bin" / "opensearch"]
        if os.geteuid() == 0:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, NOBODY, NOBODY)
            someone = ["--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
            command = ["setpriv", "--pdeathsig", "KILL", *someone, *command]
        heap = " ".join(["-Xms512m", "-Xmx512m", "-XX:-UseG1GC", *SMALL])
        java_home = Path(shutil.which("java") or "/").resolve().parents[1]
        environment = {
            "OPENSEARCH_JAVA_HOME": str(java_home),
            "OPENSEARCH_JAVA_OPTS": heap,
            "HOME": str(folder),
        }
        ready = f"{self.url}/_cluster/health?wait_for_status=yellow&timeout=1s"
        super().__init__(command, environment, ready, folder)


_SETTINGS = """discovery.type: single-node
network.host: 127.0.0.1
cluster.routing.allocation.disk.threshold_enabled: false
"""
_PROPERTIES = """process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
listeners=PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://{self.address}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}/data
num.partitions=4
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
message.max.bytes=8388608
"""
