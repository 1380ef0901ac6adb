"""Destinations for exporters of the OpenTelemetry SDK, named by OpenTelemetry's own variables.

An exporter reports success or failure, without a reason. A failure is treated as an outage: the
batch is retried. After several failures, single items of the batch are tried. If the exporter
accepts such an item, the exporter works, and items that it refuses individually are lost as
``exporter_failed``.
"""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, attach, set_value
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricReader
from opentelemetry.sdk.trace.export import SpanExportResult

from otel_mlperf.agent.delivery.destination import (
    CONSOLE_FILE,
    FORMS,
    NOT_LOADED,
    Delivered,
    Destination,
    Refused,
    TryLater,
    report_unusable,
)
from otel_mlperf.errors import ConfigError
from otel_mlperf.otlp.endpoint_settings import EXPORTER_GROUPS
from otel_mlperf.otlp.sdk_metrics import MetricConverter, ScrapedMetrics, metrics_data
from otel_mlperf.otlp.sdk_spans import to_readable_span, to_resource
from otel_mlperf.whole_file import make_folder, open_private

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from otel_mlperf.agent.delivery.destination import Batch, DestinationContext, Signal, Verdict

EXPORTER_FAILED: Final = "exporter_failed"
_DEADLINE_S: Final = 30.0
_FAILURES_BEFORE_PROBE: Final = 3
_FAILURES_OF_ONE_ITEM: Final = 60
"""After this many failures (about five minutes), a batch with a single item is lost, if the
exporter has accepted other batches."""
_MAX_BYTES: Final = 64 << 20
"""Maximum size of a console exporter's file, in bytes. One older file is kept."""
_SUCCESS: Final = (SpanExportResult.SUCCESS, MetricExportResult.SUCCESS)


class _Part(NamedTuple):
    content: Any
    items: int


class _Call(threading.Thread):
    """Export of one batch in a daemon thread, so that a hanging exporter cannot block the agent."""

    def __init__(self, batch: Batch, export: Callable[[Batch], Verdict]) -> None:
        super().__init__(name="otel_mlperf exporter", daemon=True)
        self.number, self._batch, self._export = batch.number, batch, export
        self.verdict: Verdict | Exception = TryLater("the exporter ended the thread of its call")
        self.start()

    def run(self) -> None:
        try:
            self.verdict = self._export(self._batch)
        except Exception as error:  # noqa: BLE001 - raised again by the waiting thread
            self.verdict = error


class SdkDestination(Destination):
    """Destination for one exporter of spans or metrics.

    The exporter is created at the first batch, in the thread that exports the batch.
    """

    def __init__(
        self, name: str, signal: Signal, make: Callable[[], Any], deadline_s: float = _DEADLINE_S
    ) -> None:
        self.name, self.signals = name, (signal,)
        self.form = FORMS[signal]
        self._make, self._deadline_s = make, deadline_s
        self._exporter: Any = None
        self._is_broken = False
        self._planned: tuple[int, list[_Part], Callable[[Any], Any]] | None = None
        self._call: _Call | None = None
        self._failures = 0
        self._has_worked = False

    def accept(self, batch: Batch) -> Verdict:
        """Export the batch; wait for the exporter until the deadline.

        A call that exceeds the deadline continues. When the batch is offered again, ``accept``
        waits for the same call, so that the batch is exported only once.
        """
        if self._call is None:
            self._call = _Call(batch, self._export)
        self._call.join(self._deadline_s)
        if self._call.is_alive():
            return TryLater(f"the exporter has not returned within {self._deadline_s:g} s")
        call, self._call = self._call, None
        if call.number != batch.number:
            return TryLater(
                "an earlier call of the exporter, which had exceeded its deadline, has returned",
                0.0,
            )
        if isinstance(call.verdict, Exception):
            raise call.verdict
        return call.verdict

    def close(self, signal: Signal) -> None:
        """Shut the exporter down, if it was created."""
        del signal  # a destination has a single signal
        if self._exporter is not None:
            self._exporter.shutdown()

    def _export(self, batch: Batch) -> Verdict:
        # The agent may run in a thread of the program: do not trace the exporter's own requests.
        attach(set_value(_SUPPRESS_INSTRUMENTATION_KEY, True))
        if not self._is_ready():
            return Refused(NOT_LOADED)
        # Convert once for all tries, because deltas depend on the previous conversion.
        if self._planned is None or self._planned[0] != batch.number:
            self._planned = (batch.number, *self._plan(batch))
        verdict = self._deliver(*self._planned[1:])
        if not isinstance(verdict, TryLater):
            self._planned = None
        return verdict

    def _is_ready(self) -> bool:
        if self._exporter is None and not self._is_broken:
            try:
                self._exporter = self._make()
                self._converter = MetricConverter(self._exporter)
                if isinstance(self._exporter, MetricReader):
                    self._scraped = ScrapedMetrics(self._exporter)
            except Exception as error:  # noqa: BLE001 - somebody else's code
                self._is_broken = True
                destination = f"exporter {self.name} for {self.signals[0]}"
                report_unusable(destination, f"{type(error).__name__}: {error}")
        return not self._is_broken

    def _plan(self, batch: Batch) -> tuple[list[_Part], Callable[[Any], Any]]:
        """Convert the batch; return its parts, and a function that exports a list of contents."""
        if batch.signal == "spans":
            resource = to_resource(batch.resource)
            spans = [
                _Part(to_readable_span(span, resource), span.kind == "section")
                for span in batch.spans
            ]
            return spans, self._exporter.export
        group = self._converter.convert(batch.otlp)
        if isinstance(self._exporter, MetricReader):
            self._scraped.put(group)
            return [], self._scraped.put
        metrics = [_Part(metric, len(metric.data.data_points)) for metric in group.metrics]
        return [part for part in metrics if part.items], lambda some: self._exporter.export(
            metrics_data([group._replace(metrics=some)])
        )

    def _deliver(self, parts: Sequence[_Part], export: Callable[[Any], Any]) -> Verdict:
        reason = _attempt(parts, export)
        if not reason:
            return self._delivered(0)
        self._failures += 1
        if self._failures < _FAILURES_BEFORE_PROBE:
            return TryLater(reason)
        if len(parts) == 1:
            if not self._has_worked or self._failures < _FAILURES_OF_ONE_ITEM:
                return TryLater(reason)
            self._failures = 0
            return Refused(EXPORTER_FAILED)
        for probe, rest in ((parts[:1], parts[1:]), (parts[-1:], parts[:-1])):
            if not _attempt(probe, export):
                return self._delivered(_divide(rest, export))
        return TryLater(reason)

    def _delivered(self, lost: int) -> Delivered:
        self._failures, self._has_worked = 0, True
        return Delivered({EXPORTER_FAILED: lost} if lost else {})


def _attempt(parts: Sequence[_Part], export: Callable[[Any], Any]) -> str:
    if not parts:
        return ""
    try:
        result = export([part.content for part in parts])
    except Exception as error:  # noqa: BLE001 - somebody else's code
        return f"the exporter raised {type(error).__name__}: {error}"
    return "" if result in _SUCCESS else "the exporter reported a failure without a reason"


def _divide(parts: Sequence[_Part], export: Callable[[Any], Any]) -> int:
    if not _attempt(parts, export):
        return 0
    if len(parts) == 1:
        return parts[0].items
    half = len(parts) // 2
    return _divide(parts[:half], export) + _divide(parts[half:], export)


class _ConsoleFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._printed: list[str] = []

    def write(self, text: str) -> None:
        self._printed.append(text)

    def flush(self) -> None:
        text, self._printed = "".join(self._printed), []
        make_folder(self._path.parent)
        with suppress(FileNotFoundError):
            if self._path.stat().st_size > _MAX_BYTES:
                self._path.replace(self._path.with_suffix(".old"))
        with open(self._path, "a", opener=open_private) as file:
            file.write(text)


def find_exporter(
    site: DestinationContext, signal: Signal, name: str, account: str
) -> SdkDestination:
    """Return a destination for the exporter with entry point ``name``, without loading its code.

    Raises:
        ConfigError: no installed package has an exporter of that name.
    """
    group = EXPORTER_GROUPS["traces" if signal == "spans" else "metrics"]
    found = [*entry_points(group=group, name=name)]
    if not found:
        raise ConfigError(
            f"no installed package provides an entry point {name} in the group {group}"
        )

    def make() -> Any:
        exporter = found[0].load()()
        # The console exporter prints to the standard output, but the agent has no terminal.
        printed = getattr(exporter, "out", None) in (sys.stdout, sys.__stdout__)
        if printed and not site.options.prints:
            folder = site.run_folder / "agent" / site.host
            exporter.out = _ConsoleFile(folder / CONSOLE_FILE.format(signal))
        return exporter

    return SdkDestination(account, signal, make)
