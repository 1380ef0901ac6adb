"""A misbehaving OTLP/HTTP server, for tests of senders.

A real server in a process of its own, which can be stopped, killed and started again at the same
port. Every request is written to a log before it is answered, so what was accepted is known also
after a SIGKILL of the server. ``FaultServer`` drives it from tests.

Modes: ``ok``; ``status`` (code, headers, body); ``partial`` (rejected, message); ``hang``; ``drip``
(every: seconds between the bytes of a good answer); ``reset`` (keep: accept the request first);
``close`` (no answer); ``early`` (code: answered before the body is read); ``huge`` (bytes);
``bomb`` (gzip); ``garbage`` (body); ``poison`` (name: 400 where a span or metric of that name is
in it). ``times`` limits a mode to so many requests, ``signal`` to traces or metrics. With
``ids_only`` the log has of each span its ids alone, and nothing of metrics: for loads.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import json
import os
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from servers.running import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

CONTROL = "/_mode"
PROTOBUF = {"Content-Type": "application/x-protobuf"}


class FaultServer:
    """The driving side: starts the server, sets its mode, reads what it got."""

    script = __file__

    def __init__(
        self,
        folder: Path,
        certificate: Path | None = None,
        key: Path | None = None,
        *,
        ids_only: bool = False,
    ):
        self._log = folder / "requests.jsonl"
        self._log.touch()
        self._tls = [f"--certificate={certificate}", f"--key={key}"] if certificate else []
        self._options = [*self._tls, *(["--ids-only"] if ids_only else [])]
        self._process: subprocess.Popen[str] | None = None
        (self.port,) = free_ports(1)

    def __enter__(self) -> FaultServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def url(self) -> str:
        """What OTEL_EXPORTER_OTLP_ENDPOINT is set to."""
        return f"http{'s' if self._tls else ''}://localhost:{self.port}"

    def start(self) -> None:
        """Start, each time at the same port, in mode ``ok``."""
        command = [sys.executable, self.script, f"--port={self.port}", f"--log={self._log}"]
        self._process = subprocess.Popen(
            [*command, *self._options], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            self.kill()
            raise RuntimeError(f"the server on port {self.port} ended at its start")

    def kill(self) -> None:
        """End it at once: connections are reset, new ones refused."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def pause(self) -> None:
        """Like a network that swallows everything: connections are made, nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """End a pause."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def mode(self, mode: str, **options: Any) -> None:
        """Behave like this from now on, or for the next ``times`` requests."""
        if self._tls:
            trusting = ssl.create_default_context()
            trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
            http_ = http.client.HTTPSConnection("localhost", self.port, context=trusting)
        else:
            http_ = http.client.HTTPConnection("localhost", self.port)
        http_.request("POST", CONTROL, json.dumps({"mode": mode, **options}).encode())
        http_.getresponse().read()
        http_.close()

    def requests(self) -> list[dict[str, Any]]:
        """Every request so far: at, path, headers, bytes, mode, accepted, spans, points."""
        return [json.loads(line) for line in self._log.read_text().splitlines()]

    def spans(self) -> list[dict[str, Any]]:
        """Every span of the requests that were accepted, as often as it came."""
        return [span for request in self._accepted() for span in request["spans"]]

    def ids(self) -> Iterator[str]:
        """Trace and span id of each span that was accepted, where ``ids_only`` was asked for."""
        with self._log.open() as log:
            for line in log:
                request = json.loads(line)
                if request["accepted"]:
                    yield from request["spans"]

    def points(self) -> list[dict[str, Any]]:
        """Every metric point of the requests that were accepted, as often as it came."""
        return [point for request in self._accepted() for point in request["points"]]

    def _accepted(self) -> list[dict[str, Any]]:
        return [request for request in self.requests() if request["accepted"]]


def plain_value(value: Any) -> Any:
    """The Python value of an ``AnyValue``."""
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [plain_value(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return plain_attributes(value.kvlist_value.values)
    content = getattr(value, kind)
    return content.hex() if kind == "bytes_value" else content


def plain_attributes(pairs: Iterable[Any]) -> dict[str, Any]:
    """Attributes as a dictionary."""
    return {pair.key: plain_value(pair.value) for pair in pairs}


def plain_spans(body: bytes) -> list[dict[str, Any]]:
    """The spans of a request, ids in hex."""
    return [
        {
            "trace_id": span.trace_id.hex(),
            "span_id": span.span_id.hex(),
            "parent_id": span.parent_span_id.hex(),
            "name": span.name,
            "start_ns": span.start_time_unix_nano,
            "end_ns": span.end_time_unix_nano,
            "attributes": plain_attributes(span.attributes),
            "links": [[link.trace_id.hex(), link.span_id.hex()] for link in span.links],
            "events": [event.name for event in span.events],
            "points": [
                [event.time_unix_nano, event.name, plain_attributes(event.attributes)]
                for event in span.events
            ],
            "events_left_out": span.dropped_events_count,
            "dropped": [
                span.dropped_attributes_count,
                span.dropped_links_count,
                [event.dropped_attributes_count for event in span.events],
                [link.dropped_attributes_count for link in span.links],
            ],
            "error": span.status.message if span.status.code == 2 else None,
            "status": [span.status.code, span.status.message],
            "kind": span.kind,
            "flags": span.flags,
            "trace_state": span.trace_state,
            "scope": [scope.scope.name, scope.scope.version, scope.schema_url],
            "link_fields": [
                [link.trace_id.hex(), link.flags, plain_attributes(link.attributes)]
                for link in span.links
            ],
            "resource": plain_attributes(group.resource.attributes),
        }
        for group in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in group.scope_spans
        for span in scope.spans
    ]


def partial_answer(is_traces: bool, plan: dict[str, Any]) -> bytes:
    """The answer of a server that did not take all."""
    response: Any
    if is_traces:
        response = ExportTraceServiceResponse()
        response.partial_success.rejected_spans = plan["rejected"]
    else:
        response = ExportMetricsServiceResponse()
        response.partial_success.rejected_data_points = plan["rejected"]
    response.partial_success.error_message = plan.get("message", "")
    return response.SerializeToString()


def span_ids(body: bytes) -> list[str]:
    """Trace and span id of each span of a request, in hex."""
    return [
        span.trace_id.hex() + span.span_id.hex()
        for group in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in group.scope_spans
        for span in scope.spans
    ]


def plain_points(body: bytes) -> list[dict[str, Any]]:
    """The metric points of a request; of a histogram, value is its sum."""
    return [
        {
            "name": metric.name,
            "unit": metric.unit,
            "kind": kind,
            "temporality": getattr(getattr(metric, kind), "aggregation_temporality", 0),
            "attributes": plain_attributes(point.attributes),
            "start_ns": point.start_time_unix_nano,
            "time_ns": point.time_unix_nano,
            "value": getattr(point, point.WhichOneof("value") or "as_int")
            if kind in ("gauge", "sum")
            else point.sum,
            "count": getattr(point, "count", None),
            "exemplars": [[one.trace_id.hex(), one.span_id.hex()] for one in point.exemplars],
            "scope": [scope.scope.name, scope.scope.version, scope.schema_url],
            "resource": plain_attributes(group.resource.attributes),
        }
        for group in ExportMetricsServiceRequest.FromString(body).resource_metrics
        for scope in group.scope_metrics
        for metric in scope.metrics
        for kind in [metric.WhichOneof("data")]
        for point in getattr(metric, kind).data_points
    ]


class Plans:
    """A server's state: how to behave, and the log."""

    def __init__(self, log: str) -> None:
        self._lock = threading.Lock()
        self._log = open(log, "a", buffering=1)  # noqa: SIM115 - open as long as the server lives
        self.plan: dict[str, Any] = {"mode": "ok"}

    def next_plan(self, about: str) -> dict[str, Any]:
        """How to behave to one request about ``about``; a limited mode is used up by it."""
        with self._lock:
            plan = self.plan
            if plan.get("signal", about) != about:
                return {"mode": "ok"}
            if "times" in plan:
                plan["times"] -= 1
                if plan["times"] <= 0:
                    self.plan = {"mode": "ok"}
            return plan

    def note(self, **facts: Any) -> None:
        """Write one request to the log, before it is answered."""
        with self._lock:
            self._log.write(json.dumps(facts) + "\n")


class Faults(Plans, ThreadingHTTPServer):
    """The server over HTTP."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, port: int, log: str, ids_only: bool = False) -> None:
        Plans.__init__(self, log)
        ThreadingHTTPServer.__init__(self, ("127.0.0.1", port), Handler)
        self.ids_only = ids_only


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    server: Faults

    def log_message(self, *_: object) -> None:
        """Say nothing on stderr."""

    def do_GET(self) -> None:
        """Nobody is expected to ask; a client that follows redirects would come here."""
        self._note("get", accepted=False)
        self._answer(200)

    def do_POST(self) -> None:
        """Take a mode or a request."""
        if self.path == CONTROL:
            self.server.plan = json.loads(self._body())
            return self._answer(200)
        plan = self.server.next_plan(self.path.rpartition("/")[2])
        if plan["mode"] == "early":
            self._note("early", accepted=False)
            self.close_connection = True
            return self._answer(plan.get("code", 413), headers={"Connection": "close"})
        body = self._body()
        size = len(body)
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        spans, points = self._items(body)
        mode = plan["mode"]
        if mode == "poison" and plan["name"] not in [item["name"] for item in spans + points]:
            mode = "ok"
        accepted = mode in ("ok", "partial") or plan.get("keep", False)
        self._note(mode, accepted=accepted, size=size, spans=spans, points=points)
        return getattr(self, f"_{mode}")(plan)

    def _items(self, body: bytes) -> tuple[list[Any], list[Any]]:
        if self.path.endswith("traces"):
            return (span_ids if self.server.ids_only else plain_spans)(body), []
        if self.path.endswith("metrics") and not self.server.ids_only:
            return [], plain_points(body)
        return [], []

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _note(
        self,
        mode: str,
        *,
        accepted: bool,
        size: int = 0,
        spans: list[Any] | None = None,
        points: list[Any] | None = None,
    ) -> None:
        self.server.note(
            at=time.monotonic(),
            path=self.path,
            headers={name.lower(): value for name, value in self.headers.items()},
            bytes=size,
            mode=mode,
            accepted=accepted,
            spans=spans or [],
            points=points or [],
        )

    def _answer(self, code: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in (headers or PROTOBUF).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _ok(self, _: dict[str, Any]) -> None:
        self._answer(200)

    def _status(self, plan: dict[str, Any]) -> None:
        self._answer(plan["code"], plan.get("body", "").encode(), plan.get("headers"))

    def _poison(self, _: dict[str, Any]) -> None:
        self._answer(400, b"poison", {"Content-Type": "text/plain"})

    def _partial(self, plan: dict[str, Any]) -> None:
        self._answer(200, partial_answer(self.path.endswith("traces"), plan))

    def _hang(self, _: dict[str, Any]) -> None:
        self.connection.recv(1)
        self.close_connection = True

    def _drip(self, plan: dict[str, Any]) -> None:
        for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n":
            time.sleep(plan["every"])
            self.wfile.write(bytes([byte]))

    def _reset(self, _: dict[str, Any]) -> None:
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.rfile.close()
        self.connection.close()
        self.close_connection = True

    def _close(self, _: dict[str, Any]) -> None:
        self.close_connection = True

    def _huge(self, plan: dict[str, Any]) -> None:
        self.send_response(plan.get("code", 200))
        self.send_header("Content-Length", str(plan["bytes"]))
        self.end_headers()
        for _ in range(plan["bytes"] >> 16):
            self.wfile.write(b"x" * (1 << 16))

    def _bomb(self, _: dict[str, Any]) -> None:
        self._answer(200, gzip.compress(bytes(1 << 25)), {"Content-Encoding": "gzip", **PROTOBUF})

    def _garbage(self, plan: dict[str, Any]) -> None:
        self._answer(200, plan.get("body", "OK").encode(), {"Content-Type": "text/html"})


def handle_quietly(server: Faults) -> None:
    """A client that goes away in the middle is what is tested, not worth a traceback."""
    server.handle_error = lambda *_: None  # type: ignore[method-assign]


def main() -> None:
    """Serve until killed; print a line once requests are answered."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--log")
    parser.add_argument("--certificate")
    parser.add_argument("--key")
    parser.add_argument("--ids-only", action="store_true")
    options = parser.parse_args()
    server = Faults(options.port, options.log, options.ids_only)
    handle_quietly(server)
    if options.certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(options.certificate, options.key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    print("ready", flush=True)
    end_with_parent()
    server.serve_forever()


def end_with_parent() -> None:
    """A test that dies takes its server along."""
    threading.Thread(target=lambda: (_until_orphaned(), os._exit(0)), daemon=True).start()


def _until_orphaned() -> None:
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(1)


if __name__ == "__main__":
    main()
