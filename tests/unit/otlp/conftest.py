"""A server that misbehaves when it is told to, and clients of it."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from fault_server import FaultServer

from otel_mlperf.otlp.endpoint_settings import Signal, SignalSettings
from otel_mlperf.otlp.http_client import Client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NOW = 1_700_000_000.0


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultServer]:
    """One server for all tests here that leave it alive."""
    with FaultServer(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def server(shared: FaultServer) -> FaultServer:
    """The server, behaving."""
    shared.mode("ok")
    return shared


@pytest.fixture
def client_of() -> Iterator[Callable[..., Client]]:
    """Makes clients of a server and closes them."""
    made: list[Client] = []

    def make(server: FaultServer, signal: Signal = "traces", **changes: Any) -> Client:
        settings = SignalSettings(signal=signal, endpoint=f"{server.url}/v1/{signal}")
        made.append(Client(replace(settings, **changes), now=lambda: NOW))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority, a server certificate for localhost and another authority."""
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("server", "other"):
        subprocess.run(
            f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -keyout {name}.key -out {name}.pem "
            "-subj /CN=localhost -addext subjectAltName=DNS:localhost".split(),
            cwd=folder,
            check=True,
            capture_output=True,
        )
    return folder


@pytest.fixture
def locked_key(certificates: Path, tmp_path: Path) -> Path:
    """The server's key, for which a password is needed."""
    locked = tmp_path / "locked.key"
    subprocess.run(
        f"openssl rsa -aes128 -passout pass:secret -in server.key -out {locked}".split(),
        cwd=certificates,
        check=True,
        capture_output=True,
    )
    return locked
