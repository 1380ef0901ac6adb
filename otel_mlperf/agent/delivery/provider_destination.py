"""Destination for the user's own tracer provider (``provider="join"``).

Each batch of spans is sent to the process of its rank. That process passes the spans to the
provider's span processors and replies. Spans that have not been accepted when the process ends are
lost as ``process_ended``.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING, Any, Final

import msgspec

from otel_mlperf import names
from otel_mlperf.agent.delivery.destination import (
    Delivered,
    Destination,
    Refused,
    SpanItem,
    TryLater,
)
from otel_mlperf.journal.journal_folder import folders_of_run
from otel_mlperf.portability import IS_PORTABLE, user_id

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection
    from pathlib import Path

    from otel_mlperf.agent.delivery.destination import Batch, DestinationContext, Signal, Verdict

Message = tuple[int, dict[str, Any], list[SpanItem]]
"""Number, resource attributes and spans of a batch."""
_SUFFIX: Final = ".spans"
_ANSWER: Final = msgspec.msgpack.Decoder(dict[str, int])


class ProviderDestination(Destination):
    """Destination for the tracer providers in the processes of this node's ranks."""

    name = "provider"
    signals = ("spans",)

    def __init__(self, run_folder: Path) -> None:
        self._run_folder = run_folder
        self._connections: dict[str, Connection] = {}

    def accept(self, batch: Batch) -> Verdict:
        """Send the batch to the process of its rank and wait for the reply."""
        instance = str(batch.resource[names.SERVICE_INSTANCE_ID])
        connection = self._connections.get(instance) or self._connect(batch, instance)
        if connection is None:
            return Refused("process_ended")
        self._connections[instance] = connection
        message: Message = (batch.number, batch.resource, batch.spans)
        try:
            connection.send_bytes(msgspec.msgpack.encode(message))
            return Delivered(_ANSWER.decode(connection.recv_bytes()))
        except (OSError, EOFError) as error:
            self._connections.pop(instance).close()
            return TryLater(
                f"the process of rank {batch.resource[names.RANK]} disconnected: {error!r}"
            )

    def _connect(self, batch: Batch, instance: str) -> Connection | None:
        from multiprocessing.connection import Connection  # loaded only if needed

        run_id = batch.resource[names.RUN_ID]
        for folder in folders_of_run(run_id, self._run_folder, user=user_id()):
            try:
                with socket_path(folder, instance) as path, socket.socket(socket.AF_UNIX) as made:
                    made.connect(path)
                    return Connection(made.detach())
            except OSError:  # the socket is in another folder, or the process has ended
                continue
        return None

    def close(self, signal: Signal) -> None:
        """Close the connections to all processes."""
        del signal
        while self._connections:
            self._connections.popitem()[1].close()


def make(site: DestinationContext) -> ProviderDestination | None:
    """Create the destination for this node's processes; None if the options join no provider."""
    return ProviderDestination(site.run_folder) if site.options.joins_provider else None


@contextlib.contextmanager
def socket_path(folder: str, instance: str) -> Iterator[str]:
    """Yield the path of the socket of process ``instance``, shortened to fit AF_UNIX.

    The path is valid only in the context.
    """
    if IS_PORTABLE:  # no /proc: a path that is too long raises OSError
        yield os.path.join(folder, instance + _SUFFIX)
        return
    place = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{place}/{instance}{_SUFFIX}"
    finally:
        os.close(place)


def drop_sockets(folder: Path) -> None:
    """Remove the sockets that ended processes have left in the journal folder ``folder``."""
    for path in folder.glob(f"*{_SUFFIX}*"):
        path.unlink(missing_ok=True)
