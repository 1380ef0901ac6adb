"""How do the real servers start on free ports with the shipped configuration, and stop?

The files under ``deploy/`` are used as they are: the Collector and Jaeger take addresses and
folders from the environment, Prometheus from flags and from the target list beside its file.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import urllib3
from servers import build

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
PATIENCE_S = 300.0
"""For what comes at once, or in seconds: so long only on a machine that is very busy."""
STOP_S = 60.0

T = TypeVar("T")


class NotYet:
    """A false answer of a condition, which shows in the error what there was instead."""

    def __init__(self, found: object) -> None:
        self.found = found

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return repr(self.found)


def wait_until(condition: Callable[[], T], timeout: float = PATIENCE_S, what: str = "") -> T:
    """Asks ``condition`` again and again and returns its first true answer.

    Raises:
        TimeoutError: None came within ``timeout`` seconds; the message names the last answer.
    """
    deadline = time.monotonic() + timeout
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what or 'no true answer'} after {timeout:g} s, last: {answer!r}")
        time.sleep(0.05)
    return answer


_given: set[int] = set()
"""Ports that were given out: who has one may not listen at it yet."""


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on now, each given out once.

    They lie below the range that the kernel gives to outgoing connections, so that a server which
    is stopped for a while finds its port free again.
    """
    dice = random.SystemRandom()  # tests seed the shared generator alike in every process
    found: set[int] = set()
    while len(found) < count:
        port = dice.randrange(15_000, 32_000)
        with socket.socket() as probe:
            if port not in found | _given and probe.connect_ex(("127.0.0.1", port)):
                found.add(port)
    _given.update(found)
    return list(found)


_ENDED_WITH_US = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()
"""Else a server runs on for good when the tests are killed."""


class Server:
    """One program that answers on a port, to be started, stopped, killed and started again."""

    def __init__(
        self,
        command: list[str | Path],
        environment: Mapping[str, str],
        ready_url: str,
        folder: Path,
    ) -> None:
        self.log = folder / "log.txt"
        self._command = command
        self._environment = os.environ | environment
        self._ready_url = ready_url
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it and returns when it says that it is ready."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*_ENDED_WITH_US, *self._command],
                env=self._environment,
                cwd=self._folder,
                stdout=log,
                stderr=log,
            )
        try:
            wait_until(self._ready)
        except TimeoutError:
            self.kill()
            raise RuntimeError(
                f"{self._command[0]} is not ready, it said:\n{self.said()}"
            ) from None

    def stop(self) -> None:
        """Ends it in good order; nothing happens when it does not run."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.kill()
        self._process = None

    def kill(self) -> None:
        """Ends it at once, as a crash does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = None

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """It stands still meanwhile: it takes connections, as its kernel does, and answers none."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def said(self) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])

    def _ready(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"{self._command[0]} ended at its start, it said:\n{self.said()}")
        return self._answers()

    def _answers(self) -> bool:
        try:
            answer = urllib3.request("GET", self._ready_url, retries=False, timeout=2.0)
        except urllib3.exceptions.HTTPError:
            return False
        return answer.status == 200


class Prometheus(Server):
    """Prometheus with the shipped files."""

    def __init__(self, folder: Path, port: int, targets: Mapping[str, str]) -> None:
        self.url = f"http://127.0.0.1:{port}"
        for name in ("prometheus.yml", "rules.yaml"):
            shutil.copy(DEPLOY / "prometheus" / name, folder)
        _write_targets(folder / "targets.yaml", targets)
        super().__init__(
            [
                build.program(build.PROMETHEUS, "prometheus"),
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address=127.0.0.1:{port}",
                "--web.enable-otlp-receiver",
                "--enable-feature=exemplar-storage",
            ],
            {},
            f"{self.url}/-/ready",
            folder,
        )


class Jaeger(Server):
    """Jaeger with the shipped file."""

    def __init__(self, folder: Path, metrics_port: int, prometheus_url: str) -> None:
        otlp, otlp_http, query, query_grpc, health = free_ports(5)
        self.url = f"http://127.0.0.1:{query}"
        self.otlp_address = f"127.0.0.1:{otlp}"
        super().__init__(
            [build.program(build.JAEGER, "jaeger"), f"--config={DEPLOY}/jaeger/config.yaml"],
            {
                "JAEGER_OTLP_GRPC": self.otlp_address,
                "JAEGER_OTLP_HTTP": f"127.0.0.1:{otlp_http}",
                "JAEGER_QUERY_HTTP": f"127.0.0.1:{query}",
                "JAEGER_QUERY_GRPC": f"127.0.0.1:{query_grpc}",
                "JAEGER_HEALTH": f"127.0.0.1:{health}",
                "JAEGER_METRICS_HOST": "127.0.0.1",
                "JAEGER_METRICS_PORT": str(metrics_port),
                "JAEGER_BADGER": str(folder / "badger"),
                "JAEGER_UI": f"{DEPLOY}/jaeger/ui.json",
                "PROMETHEUS_URL": prometheus_url,
            },
            f"http://127.0.0.1:{health}/status",
            folder,
        )


class Collector(Server):
    """The Collector with the shipped file; started again, it has the same ports and queue."""

    def __init__(
        self, folder: Path, jaeger: Jaeger, prometheus: Prometheus, metrics_port: int | None = None
    ) -> None:
        http, grpc, health, spare = free_ports(4)
        self.otlp_endpoint = f"http://127.0.0.1:{http}"
        self.otlp_grpc_endpoint = f"http://127.0.0.1:{grpc}"
        self.logs = folder / "logs" / "logs.jsonl"
        super().__init__(
            [
                build.program(build.COLLECTOR, "otelcol"),
                f"--config={DEPLOY}/collector/config.yaml",
            ],
            {
                "COLLECTOR_OTLP_GRPC": f"127.0.0.1:{grpc}",
                "COLLECTOR_OTLP_HTTP": f"127.0.0.1:{http}",
                "COLLECTOR_HEALTH": f"127.0.0.1:{health}",
                "COLLECTOR_METRICS_HOST": "127.0.0.1",
                "COLLECTOR_METRICS_PORT": str(metrics_port or spare),
                "COLLECTOR_QUEUE": str(folder / "queue"),
                "COLLECTOR_LOGS": str(self.logs.parent),
                "COLLECTOR_SPAN_METRICS_INTERVAL": "1s",
                "JAEGER_OTLP": jaeger.otlp_address,
                "PROMETHEUS_OTLP": f"{prometheus.url}/api/v1/otlp",
            },
            f"http://127.0.0.1:{health}/",
            folder,
        )


class Mlflow(Server):
    """MLflow's tracking server before a database of its own.

    As ``mlflow server`` starts it, without the processes around it, which would outlive a kill.
    """

    def __init__(self, folder: Path) -> None:
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        database = f"sqlite:///{folder}/mlflow.db"
        super().__init__(
            [build.python_of(build.MLFLOW), "-m", "uvicorn", "--interface=wsgi", "--host=127.0.0.1",
             f"--port={port}", "mlflow.server:app"],
            {
                "_MLFLOW_SERVER_FILE_STORE": database,
                "_MLFLOW_SERVER_REGISTRY_STORE": database,
                "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
                "_MLFLOW_SERVER_ARTIFACT_DESTINATION": str(folder / "artifacts"),
                "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
                "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
                "MLFLOW_DISABLE_TELEMETRY": "true",
            },
            f"{self.url}/health",
            folder,
        )  # fmt: skip

    def start(self) -> None:
        """Starts it; ready when its database has its tables, which it makes when first asked."""
        super().start()
        known = f"{self.url}/api/2.0/mlflow/experiments/get?experiment_id=0"
        urllib3.request("GET", known, retries=False, timeout=PATIENCE_S)


def _write_targets(path: Path, targets: Mapping[str, str]) -> None:
    path.write_text(
        "".join(
            f'- targets: ["{address}"]\n  labels: {{component: {component}}}\n'
            for component, address in targets.items()
        )
    )
