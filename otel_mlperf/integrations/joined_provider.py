"""Delivery of sampled sections to the program's own tracer provider (``provider="join"``).

A thread receives the spans that the agent sends back. For each span, the thread queries the
program's sampler and calls ``on_end`` of the provider's span processors. The cost of a span
is about 30 µs.
"""

from __future__ import annotations

import atexit
import os
import socket
import threading
import time
from collections import Counter
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Final

import msgspec
from opentelemetry import trace
from opentelemetry.context import Context

from otel_mlperf import ids, names
from otel_mlperf.agent.delivery.destination import UNSELECTED
from otel_mlperf.agent.delivery.provider_destination import Message, socket_path
from otel_mlperf.otlp.sdk_spans import to_readable_span, to_resource
from otel_mlperf.recorder.core.faults import callback_failed, internal_error, warn_once
from otel_mlperf.recorder.core.forks import call_in_children

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan

    from otel_mlperf.agent.delivery.destination import SpanItem
    from otel_mlperf.recorder.lifecycle.run import Run

PATIENCE_S: Final = 5.0
"""Maximum wait at the end of a run for its last spans and the provider's flush, in seconds."""
_LOOK_S: Final = 0.5
"""Interval of the checks for a provider while spans are pending, in seconds."""
_RUN_LENGTH: Final = 8
"""Number of spans between two releases of the GIL: about 0.2 ms."""
_MESSAGE: Final = msgspec.msgpack.Decoder(Message)
_open: set[socket.socket | Connection] = set()


def join(run: Run) -> None:
    """Pass a run's sampled sections to the program's tracer provider, once a provider is set."""
    try:
        joined = JoinedProvider(run)
    except OSError as error:
        warn_once(
            "provider='join': the socket for spans cannot be created (%s): spans are stored in "
            "the run folder only",
            error,
        )
        return
    joined.start()
    run.after_end.append(joined.finish)


class JoinedProvider:
    """Receiver of the agent's spans, in the process that recorded them.

    Args:
        run: the run whose sections become spans.
        find_provider: returns the program's provider, or the API's proxy while none is set.
        patience_s: timeout of ``finish``, in seconds.
    """

    def __init__(
        self,
        run: Run,
        find_provider: Callable[[], Any] = trace.get_tracer_provider,
        patience_s: float = PATIENCE_S,
    ) -> None:
        recorder = run._recorder
        assert recorder is not None
        meta = recorder.meta
        self._run, self._find, self._patience_s = run, find_provider, patience_s
        self._run_span = f"{meta.run_span:016x}"
        self._is_late = _is_missing(find_provider())
        self._ending, self._is_flushed = threading.Event(), threading.Event()
        self._answered: tuple[int, dict[str, int]] = (0, {})
        self._resource: tuple[dict[str, Any], Resource] | None = None
        instance = ids.instance_id(meta.run_id, meta.restart, meta.rank)
        self._listener = _listen(os.path.dirname(recorder.journal.path), instance)

    def start(self) -> None:
        """Start the thread that receives spans."""
        threading.Thread(target=self._listen, name="otel_mlperf join", daemon=True).start()

    def finish(self) -> None:
        """Wait, with a timeout, until the provider has received the run's last span and flushed."""
        self._ending.set()
        if not _is_missing(self._find()) and not self._is_flushed.wait(self._patience_s):
            warn_once("provider='join': the last spans were not exported within "
                      f"{self._patience_s:g} s after the end of the run; the program "
                      "continues")  # fmt: skip
            self._listener.shutdown(socket.SHUT_RDWR)

    def _listen(self) -> None:
        try:
            # Accept repeatedly: if the agent dies, its successor connects, unless the run has
            # ended.
            while not self._is_flushed.is_set():
                self._serve(Connection(self._listener.accept()[0].detach()))
        except OSError:
            pass  # closed by ``finish``
        except Exception as error:  # noqa: BLE001 - nothing above a thread
            internal_error(error)
        finally:
            _open.discard(self._listener)
            self._listener.close()

    def _serve(self, connection: Connection) -> None:
        _open.add(connection)
        try:
            while True:
                self._answer(connection)
        except (OSError, EOFError):
            pass  # the agent has ended
        finally:
            _open.discard(connection)
            connection.close()

    def _answer(self, connection: Connection) -> None:
        number, resource, items = _MESSAGE.decode(connection.recv_bytes())
        # A batch may arrive twice: from an agent that died before it stored the answer, and from
        # its successor.
        if number != self._answered[0]:
            self._answered = number, self._hand_over(resource, items)
        connection.send_bytes(msgspec.msgpack.encode(self._answered[1]))
        if any(item.span_id == self._run_span for item in items):
            self._flush()

    def _flush(self) -> None:
        flush = getattr(self._find(), "force_flush", None)
        try:
            if flush is not None:
                flush(int(self._patience_s * 1000))
        except Exception as error:  # noqa: BLE001 - the program's own; its spans have been passed on
            callback_failed("TracerProvider", flush, error)
        self._is_flushed.set()

    def _hand_over(self, given: dict[str, Any], items: Sequence[SpanItem]) -> dict[str, int]:
        """Pass spans to the provider; return the number of undelivered sections, by reason.

        ``given``: resource attributes of the run.
        """
        provider = self._await_provider()
        # A private attribute: the SDK offers no public access to its processors.
        processor = getattr(provider, "_active_span_processor", None)
        if processor is None:
            reason = "no_provider"
            if provider is not None:
                reason = "no_span_processor"
                warn_once(f"provider='join': {type(provider).__qualname__} has no span processors: "
                          "sections are stored in the run folder only")  # fmt: skip
            return {reason: count} if (count := sum(map(_is_item, items))) else {}
        resource = self._resource_of(given, provider)
        missing: Counter[str] = Counter()
        for index, item in enumerate(items):
            reason = _pass_on(item, resource, provider, processor)
            if reason and _is_item(item):
                missing[reason] += 1
            if index % _RUN_LENGTH == 0:
                time.sleep(0)  # releases the GIL: training would otherwise wait 5 ms
        return dict(missing)

    def _await_provider(self) -> Any:
        """Wait for the program's provider; return None if the run ends before a provider is set."""
        while _is_missing(provider := self._find()):
            warn_once("provider='join': the program has not set a TracerProvider yet; until then, "
                      "sections are stored in the run folder only")  # fmt: skip
            if self._ending.wait(_LOOK_S):
                return None
        if self._is_late:
            # Exit handlers run last in, first out: the run must end before its provider.
            self._is_late = False
            atexit.unregister(self._run._stop_at_exit)
            atexit.register(self._run._stop_at_exit)
        return provider

    def _resource_of(self, given: dict[str, Any], provider: Any) -> Resource:
        """Merge the resources of run and provider; the provider's attributes take precedence."""
        theirs = dict(getattr(getattr(provider, "resource", None), "attributes", {}))
        if str(theirs.get(names.SERVICE_NAME, "")).startswith("unknown_service"):
            del theirs[names.SERVICE_NAME]
        attributes = given | theirs
        if self._resource is None or self._resource[0] != attributes:
            self._resource = attributes, to_resource(attributes)
        return self._resource[1]


def _pass_on(item: SpanItem, resource: Resource, provider: Any, processor: Any) -> str:
    """Pass a span to the program's processors; return the reason if that failed, else ""."""
    try:
        span = to_readable_span(item, resource)
        is_unsampled = names.UNSAMPLED in item.attributes
        if not _is_sampled(span, getattr(provider, "sampler", None), is_unsampled):
            return UNSELECTED
        processor.on_end(span)
    except Exception as error:  # noqa: BLE001 - the program's own; training continues
        callback_failed("TracerProvider", processor.on_end, error)
        return "processor_failed"
    return ""


def _is_sampled(span: ReadableSpan, sampler: Any, is_unsampled: bool) -> bool:
    """Return the decision of the user's sampler, queried as for a span of the program.

    ``is_unsampled``: whether the span's parent counts as not sampled. Without a sampler, the result
    is True.
    """
    if sampler is None:
        return True
    # A root section serves as its own parent: the program's spans in a trace of the run always have
    # a sampled section as parent.
    above = span.parent or span.context
    flags = trace.TraceFlags(0 if is_unsampled else trace.TraceFlags.SAMPLED)
    around = trace.SpanContext(above.trace_id, above.span_id, above.is_remote, flags)
    context = trace.set_span_in_context(trace.NonRecordingSpan(around), Context())
    arguments = (context, around.trace_id, span.name, span.kind, span.attributes, span.links)
    return bool(sampler.should_sample(*arguments).decision.is_sampled())


def _is_item(item: SpanItem) -> bool:
    return item.kind == "section"


def _is_missing(provider: Any) -> bool:
    return isinstance(provider, trace.ProxyTracerProvider)


def _listen(folder: str, instance: str) -> socket.socket:
    """Return the socket to which the agent connects.

    Raises:
        OSError: the socket cannot be created in the folder.
    """
    made = socket.socket(socket.AF_UNIX)
    _open.add(made)
    with socket_path(folder, instance) as path:
        # Renamed last: the agent would take a socket that does not listen yet for that of an ended
        # process.
        made.bind(f"{path}.new")
        made.listen()
        os.rename(f"{path}.new", path)
    return made


def _close_in_child() -> None:
    """Close inherited sockets in a forked child, so that the agent notices the parent's end."""
    while _open:
        _open.pop().close()


call_in_children(_close_in_child)
