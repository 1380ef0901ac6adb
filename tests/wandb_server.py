"""Stand-in for the server of Weights & Biases, which records what ``wandb sync`` uploads.

There is no such server to install. This one takes what the real client sends, and answers as
little as that needs.
"""

from __future__ import annotations

import gzip
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_BUCKET = {
    "id": "bucket", "displayName": "digits", "historyLineCount": 0,
    "project": {"id": "project", "name": "digits", "entity": {"id": "entity", "name": "me"}},
}  # fmt: skip


class WandbServer:
    """Listens while it is entered; keeps what came."""

    def __init__(self) -> None:
        self.is_closed = False
        """Whether no login is good enough."""
        self.upserts: list[dict[str, Any]] = []
        """What was said of runs."""
        self.lines: list[dict[str, Any]] = []
        """Rows of the history, in order."""
        self.summary: dict[str, Any] = {}
        self.exit_codes: list[int] = []
        self.files: dict[str, bytes] = {}
        """By path, what was uploaded whole."""
        self.other: list[tuple[str, str]] = []
        """Everything else: the method and the path, or the operation, of each call."""

    def __enter__(self) -> WandbServer:
        self._server = _Listener(("127.0.0.1", 0), _Handler)
        self._server.told = self  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def graphql(self, asked: dict[str, Any]) -> dict[str, Any]:
        operation = asked.get("operationName", "")
        if operation == "UpsertBucket":
            self.upserts.append(asked["variables"])
            bucket = _BUCKET | {"name": asked["variables"]["name"]}
            return {"upsertBucket": {"bucket": bucket, "inserted": True}}
        self.other.append(("graphql", operation))
        if operation == "ServerFeaturesQuery":
            return {"serverInfo": {"features": []}}
        if operation == "CreateRunFiles":
            files = [{"name": name, "uploadUrl": f"{self.url}/{name}"}
                     for name in asked["variables"]["files"]]  # fmt: skip
            return {"createRunFiles": {"runID": "bucket", "uploadHeaders": [], "files": files}}
        return {}

    def stream(self, said: dict[str, Any]) -> dict[str, Any]:
        files = said.get("files", {})
        self.lines += [
            json.loads(line) for line in files.get("wandb-history.jsonl", _NO)["content"]
        ]
        for line in files.get("wandb-summary.json", _NO)["content"]:
            self.summary = json.loads(line)
        if said.get("complete"):
            self.exit_codes.append(said["exitcode"])
        return {"limits": {}}


_NO: dict[str, Any] = {"content": []}


class _Listener(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Say nothing of a client that leaves."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing on stderr."""

    def do_GET(self) -> None:
        self._answer({})

    def do_PUT(self) -> None:
        told: WandbServer = self.server.told  # type: ignore[attr-defined]
        told.files[self.path] = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer({})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        told: WandbServer = self.server.told  # type: ignore[attr-defined]
        if told.is_closed:
            self._answer({"errors": [{"message": "no"}]}, status=401)
        elif self.path == "/graphql":
            self._answer({"data": told.graphql(json.loads(body))})
        elif self.path.endswith("/file_stream"):
            self._answer(told.stream(json.loads(body)))
        else:
            told.other.append((self.command, self.path))
            self._answer({})

    def _answer(self, content: dict[str, Any], status: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
