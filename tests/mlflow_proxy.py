"""Proxy between an agent and an MLflow server, for tests.

It passes calls on, and writes down what came, until it is told to fail.
"""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import urllib3

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping


class Answer(NamedTuple):
    """What is answered in place of the server."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = MappingProxyType({})


class Unanswered(NamedTuple):
    """The server gets the call, and nobody its answer."""


class MlflowProxy:
    """Listens while it is entered."""

    def __init__(self, behind: str, tls: ssl.SSLContext | None = None) -> None:
        self.behind, self._tls = behind, tls
        self.calls: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.fail: Callable[[str, bytes], Answer | Unanswered | None] = lambda *_: None
        """Given a call and its body; None passes it on."""

    def __enter__(self) -> MlflowProxy:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.proxy = self  # type: ignore[attr-defined]
        if self._tls:
            self._server.socket = self._tls.wrap_socket(self._server.socket, server_side=True)
        scheme = "https" if self._tls else "http"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing on stderr."""

    def do_GET(self) -> None:
        self._pass_on("GET")

    def do_POST(self) -> None:
        self._pass_on("POST")

    def do_PUT(self) -> None:
        self._pass_on("PUT")

    def _pass_on(self, method: str) -> None:
        proxy: MlflowProxy = self.server.proxy  # type: ignore[attr-defined]
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        call = self.path.partition("?")[0].removeprefix("/api/2.0/mlflow/")
        proxy.calls.append(call)
        proxy.headers.append({name.lower(): value for name, value in self.headers.items()})
        answer = proxy.fail(call, body)
        if not isinstance(answer, Answer):
            kind = {"content-type": "application/json"} if body else {}
            reply = urllib3.request(
                method, proxy.behind + self.path, body=body or None, headers=kind, timeout=120.0
            )
            if isinstance(answer, Unanswered):
                self.close_connection = True
                return
            answer = Answer(reply.status, reply.data)
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)
