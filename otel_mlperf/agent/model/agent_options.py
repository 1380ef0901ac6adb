"""Settings of the agent."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from otel_mlperf.agent.model.sampling import Policy
from otel_mlperf.otlp.endpoint_settings import (
    SignalSettings,
    Temporality,
    read_exporters,
    read_metric_settings,
    read_settings,
)
from otel_mlperf.otlp.span_limits import NO_LIMITS, SpanLimits, read_span_limits
from otel_mlperf.settings.config import READING_SOURCES
from otel_mlperf.settings.declared_config import declare
from otel_mlperf.settings.load_config import load_config
from otel_mlperf.settings.run_settings import read_stored
from otel_mlperf.settings.trace_sampler import Sampler, make_sampler
from otel_mlperf.settings.tracker_list import (
    MLFLOW,
    MLFLOW_URI,
    TRACKIO,
    TRACKIO_DIR,
    trackio_folder,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from otel_mlperf.sensors.measurement import Level
    from otel_mlperf.settings.config import Config

_log = logging.getLogger("otel_mlperf.agent")
_OFTEN_NS = 5 * 10**9
SPANS_TO_OTLP = "spans/otlp"
METRICS_TO_OTLP = "metrics/otlp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options with which the agent was started."""

    policy: Policy
    sampler: Sampler | None = None
    """Decides which of the sampled traces are sent; None if all are sent."""
    limits: SpanLimits = NO_LIMITS
    traces: SignalSettings | None = None
    metrics: SignalSettings | None = None
    exporters: Mapping[Literal["spans", "metrics"], list[str]] = field(default_factory=dict)
    """Exporters of the OpenTelemetry SDK for each signal, as names of entry points."""
    prints: bool = False
    """Whether the console exporter prints to the standard output. If False, it writes to a file."""
    joins_provider: bool = False
    """Whether spans are emitted by the user's own tracer provider."""
    explicit: bool = False
    """Whether histograms are exported with explicit instead of exponential buckets."""
    temporality: Temporality = "cumulative"
    """Temporality of the metrics that are sent to OTLP servers."""
    exemplars: bool = True
    metrics_ns: int = 15 * 10**9
    metrics_often_ns: int = _OFTEN_NS
    """Export interval in the first two minutes, in which most series are new."""
    max_outbox_bytes: int = 1 << 30
    max_store_bytes: int = 1 << 30
    drain_timeout_s: float = 30.0
    trackers: frozenset[str] = frozenset()
    """Experiment trackers that receive the run."""
    tracker_report: bool = False
    """Whether the run's page is uploaded to trackers that store files."""
    readings: Level | Literal["none"] = "none"
    sources: frozenset[str] = frozenset(READING_SOURCES)
    readings_s: float = 5.0
    """Time between two readings of a sensor."""
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    """All environment variables as given, because destinations of other packages read their own
    variables. The values can contain secrets."""
    withheld: frozenset[str] = frozenset()
    """Accounts (``signal/destination``) of destinations that are named in the run folder, but not
    by the caller. Their requests are created, but not sent until the caller names the
    destination."""

    @property
    def sends_spans(self) -> bool:
        """Return whether spans are encoded for an OTLP server, even if withheld for now."""
        return self.traces is not None or SPANS_TO_OTLP in self.withheld


def read_options(environ: Mapping[str, str]) -> Options:
    """Return the options set by environment variables. Invalid values are logged and ignored."""
    declared, problems = declare(environ)  # once: each call below would read the file
    config = load_config(environ=declared)
    traces, wrong_traces = read_settings(declared, "traces")
    metrics, wrong_metrics = read_settings(declared, "metrics")
    kind, wrong_kind = read_metric_settings(declared)
    limits, wrong_limits = read_span_limits(declared)
    problems = [*problems, *wrong_traces, *wrong_metrics, *wrong_kind, *wrong_limits]
    for problem in dict.fromkeys(problems):
        _log.warning("%s", problem)
    interval = config.metric_interval_ms * 1_000_000
    return Options(
        policy=Policy(
            trace_first=config.trace_first,
            trace_every=config.trace_every,
            trace_slow_ratio=config.trace_slow_ratio,
            max_spans_per_trace=config.max_spans_per_trace,
            max_spans_per_rank=config.max_spans_per_rank,
        ),
        sampler=make_sampler(config.sampler, config.sampler_arg),
        limits=limits,
        traces=traces,
        metrics=metrics,
        exporters=_exporters(declared),
        joins_provider=config.joins_provider,
        explicit=kind.explicit_buckets,
        temporality=kind.temporality,
        exemplars=kind.exemplars,
        metrics_ns=interval,
        metrics_often_ns=min(interval, _OFTEN_NS),
        max_outbox_bytes=config.max_outbox_bytes,
        max_store_bytes=config.max_store_bytes,
        drain_timeout_s=config.drain_timeout_s,
        trackers=frozenset(config.destinations.split(",")) - {""},
        tracker_report=config.tracker_report,
        readings=config.readings,
        sources=frozenset(READING_SOURCES).difference(config.disabled_readings.split(",")),
        readings_s=_readings_s(config),
        environ=dict(environ),
    )


def read_stored_options(folder: Path, environ: Mapping[str, str]) -> Options:
    """Return the options for processing a recorded run, from the settings in the run folder.

    Args:
        folder: the run folder, possibly of another user.
        environ: the caller's environment variables. Only these variables select where data is sent.
    """
    stored = read_stored(folder, environ)
    options = read_options(stored.environ)
    recorded = _exporters(stored.recorded_destinations)
    exporters = {
        signal: [*dict.fromkeys([*recorded[signal], *named])]
        for signal, named in options.exporters.items()
    }
    withheld = _withheld(options, stored.recorded_destinations)
    return replace(options, withheld=withheld, exporters=exporters)


def _exporters(environ: Mapping[str, str]) -> dict[Literal["spans", "metrics"], list[str]]:
    return {
        "spans": read_exporters(environ, "traces"),
        "metrics": read_exporters(environ, "metrics"),
    }


def _withheld(options: Options, recorded: Mapping[str, str]) -> frozenset[str]:
    environ, accounts = options.environ, set()
    if options.traces is None and read_settings(recorded, "traces")[0]:
        accounts.add(SPANS_TO_OTLP)
    if options.metrics is None and read_settings(recorded, "metrics")[0]:
        accounts.add(METRICS_TO_OTLP)
    for signal, named in _exporters(recorded).items():
        accounts |= {f"{signal}/{each}" for each in named if each not in options.exporters[signal]}
    if MLFLOW in options.trackers and MLFLOW_URI in recorded and not environ.get(MLFLOW_URI):
        accounts.add(f"scalars/{MLFLOW}")
    is_elsewhere = trackio_folder({**environ, **recorded}) != trackio_folder(environ)
    if TRACKIO in options.trackers and is_elsewhere and not environ.get(TRACKIO_DIR):
        accounts.add(f"scalars/{TRACKIO}")
    return frozenset(accounts)


def _readings_s(config: Config) -> float:
    if config.readings_interval_ms:
        return config.readings_interval_ms / 1e3
    return 1.0 if config.readings == "comprehensive" else 5.0
