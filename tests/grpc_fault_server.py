"""An OTLP/gRPC server that misbehaves when it is told to, and its driving side.

As ``fault_server``, which has the log and the limits ``times`` and ``signal``. Modes: ``ok``;
``status`` (code, message, retry_s or details, keep); ``partial`` (rejected, message); ``hang``;
``garbage`` (body); ``huge`` (bytes); ``poison`` (name: INVALID_ARGUMENT where an item of that name
is in it).
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
from fault_server import (
    FaultServer,
    Plans,
    end_with_parent,
    partial_answer,
    plain_points,
    plain_spans,
)

from otel_mlperf.otlp import wire

if TYPE_CHECKING:
    from collections.abc import Mapping

CONTROL = "/test/Mode"
MAX_BYTES = 64 * 1024
"""The largest request that it takes."""


class GrpcFaultServer(FaultServer):
    """The driving side.

    Args:
        folder: where its log is.
        certificate: file by which it shows who it is.
        key: the private key of that.
        clients: file with the authorities of clients, which have to show a certificate.
        has_gzip: whether it knows compressed requests.
    """

    script = __file__

    def __init__(
        self,
        folder: Path,
        certificate: Path | None = None,
        key: Path | None = None,
        clients: Path | None = None,
        *,
        has_gzip: bool = True,
    ) -> None:
        super().__init__(folder, certificate, key)
        self._options += [f"--clients={clients}"] if clients else []
        self._options += [] if has_gzip else ["--no-gzip"]

    def mode(self, mode: str, **options: Any) -> None:
        """Behave like this from now on, or for the next ``times`` requests."""
        with grpc.insecure_channel(f"localhost:{self.port}") as channel:
            channel.unary_unary(CONTROL)(json.dumps({"mode": mode, **options}).encode())


class GrpcFaults(Plans, grpc.GenericRpcHandler):
    """Answers each method of any service."""

    def service(self, details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(
            lambda body, context: self._answer(details.method, body, context)
        )

    def _answer(self, method: str, body: bytes, context: Any) -> bytes:
        if method == CONTROL:
            self.plan = json.loads(body)
            return b""
        is_traces = ".trace." in method
        items = plain_spans(body) if is_traces else plain_points(body)
        plan = self.next_plan("traces" if is_traces else "metrics")
        mode = plan["mode"]
        if mode == "poison" and plan["name"] not in [item["name"] for item in items]:
            mode = "ok"
        self.note(
            at=time.monotonic(),
            path=method,
            headers=dict(context.invocation_metadata()),
            bytes=len(body),
            mode=mode,
            accepted=mode in ("ok", "partial") or plan.get("keep", False),
            spans=items if is_traces else [],
            points=[] if is_traces else items,
        )
        if mode == "partial":
            return partial_answer(is_traces, plan)
        return getattr(self, f"_{mode}")(plan, context)

    def _ok(self, _plan: Mapping[str, Any], _context: Any) -> bytes:
        return b""

    def _status(self, plan: Mapping[str, Any], context: Any) -> None:
        details = plan.get("details", "").encode()
        if "retry_s" in plan:
            details = _retry_info(plan["retry_s"])
        context.set_trailing_metadata([("grpc-status-details-bin", details)])
        context.abort(grpc.StatusCode[plan["code"]], plan.get("message", ""))

    def _poison(self, _plan: Mapping[str, Any], context: Any) -> None:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "poison")

    def _hang(self, _plan: Mapping[str, Any], context: Any) -> bytes:
        while context.is_active():
            time.sleep(0.01)
        return b""

    def _garbage(self, plan: Mapping[str, Any], _context: Any) -> bytes:
        return plan["body"].encode()

    def _huge(self, plan: Mapping[str, Any], _context: Any) -> bytes:
        return bytes(plan["bytes"])


def _retry_info(seconds: float) -> bytes:
    """A google.rpc.Status that asks for a pause."""
    duration = wire.number(1, int(seconds)) + wire.number(2, int(seconds % 1 * 1e9))
    about = wire.text(1, "type.googleapis.com/google.rpc.RetryInfo")
    detail = about + wire.block(2, wire.block(1, duration))
    return wire.number(1, 14) + wire.block(3, detail)


def main() -> None:
    """Serve until killed; print a line once requests are answered."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--log")
    parser.add_argument("--certificate", type=Path)
    parser.add_argument("--key", type=Path)
    parser.add_argument("--clients", type=Path)
    parser.add_argument("--no-gzip", action="store_true")
    given = parser.parse_args()
    options = [("grpc.max_receive_message_length", MAX_BYTES), ("grpc.so_reuseport", 0)]
    if given.no_gzip:
        options.append(("grpc.compression_enabled_algorithms_bitset", 1))
    server = grpc.server(ThreadPoolExecutor(4), handlers=[GrpcFaults(given.log)], options=options)
    address = f"localhost:{given.port}"
    if given.certificate:
        pair = given.key.read_bytes(), given.certificate.read_bytes()
        clients = given.clients.read_bytes() if given.clients else None
        server.add_secure_port(
            address, grpc.ssl_server_credentials([pair], clients, clients is not None)
        )
    else:
        server.add_insecure_port(address)
    server.start()
    print("ready", flush=True)
    end_with_parent()
    server.wait_for_termination()


if __name__ == "__main__":
    main()
