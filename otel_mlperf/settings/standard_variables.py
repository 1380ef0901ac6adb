"""The variables of OpenTelemetry's specification, and what each means here.

The list follows specification 1.60: general and SDK variables, OTLP exporter, Prometheus and Zipkin
exporters. A variable that is set and not used is named in a warning when a run starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class StandardVariable(NamedTuple):
    """Standard variable, or several that belong together."""

    names: tuple[str, ...]
    meaning: str
    """Its effect here; for an unused one, what to use instead."""
    is_used: bool = True


def _used(meaning: str, *names: str) -> StandardVariable:
    return StandardVariable(names, meaning)


def _otlp(ending: str, meaning: str) -> StandardVariable:
    middles = ("", "TRACES_", "METRICS_")
    return _used(meaning, *(f"OTEL_EXPORTER_OTLP_{middle}{ending}" for middle in middles))


def _unused(instead: str, *names: str) -> StandardVariable:
    return StandardVariable(names, instead, is_used=False)


_BATCHES: Final = (
    "the agent sends what has been recorded, at most 2 MiB at once; it keeps up by itself"
)
_LOGS: Final = "logs stay the program's: `om.log_ids()` puts trace and span ids into them"

STANDARD: Final = (
    _used("`true`: nothing is recorded; any other word means `false`.", "OTEL_SDK_DISABLED"),
    _used("`service.name`; without it the run's name.", "OTEL_SERVICE_NAME"),
    _used("Further resource attributes, `name=value` by commas.", "OTEL_RESOURCE_ATTRIBUTES"),
    _used("Formats of trace headers, by the API itself.", "OTEL_PROPAGATORS"),
    _used("A file of OpenTelemetry's declarative configuration.",
          "OTEL_CONFIG_FILE", "OTEL_EXPERIMENTAL_CONFIG_FILE"),
    _used("A list: with `otlp` the signal is sent by OTLP, without it is not; `none`: not. Other "
          "names are installed exporters of the OpenTelemetry SDK (opentelemetry.md).",
          "OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER"),
    _used("`always_on`, `always_off`, `traceidratio` or one of these after `parentbased_`: which "
          "traces are sent, of those that `first_steps`, `keep_every` and the like select. Unset: "
          "all of these.", "OTEL_TRACES_SAMPLER"),
    _used("The ratio of `traceidratio`, from 0 to 1 (default: 1).", "OTEL_TRACES_SAMPLER_ARG"),
    _used("Limits of what a program or library gives a span, up to the fixed ones: 64 attributes "
          "of 4,096 bytes, 8 events of 16 attributes. A larger one is named in a warning.",
          "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_ATTRIBUTE_COUNT_LIMIT",
          "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT",
          "OTEL_SPAN_EVENT_COUNT_LIMIT", "OTEL_SPAN_LINK_COUNT_LIMIT",
          "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT", "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT"),
    _used("Milliseconds between two deliveries of metrics.", "OTEL_METRIC_EXPORT_INTERVAL"),
    _otlp("ENDPOINT", "Where to send; of one signal the whole URL. Over gRPC a machine and port, "
          "like `http://localhost:4317`: a path is ignored, the scheme may be missing."),
    _otlp("PROTOCOL", "`http/protobuf` (default) or `grpc`."),
    _otlp("HEADERS", "Headers of each request (gRPC: metadata), `name=value` by commas."),
    _otlp("TIMEOUT", "Milliseconds for a request (10000)."),
    _otlp("COMPRESSION", "`gzip`, or `none`."),
    _otlp("INSECURE", "`true`: headers are sent over plain http to other machines, too; over gRPC "
          "an endpoint without a scheme is spoken to without TLS."),
    _otlp("CERTIFICATE", "File with the authorities to trust, in place of the system's."),
    _otlp("CLIENT_CERTIFICATE", "File by which the sender shows who it is."),
    _otlp("CLIENT_KEY", "The private key of that."),
    _used("`cumulative` (default), `delta` or `lowmemory`; Prometheus needs the first.",
          "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"),
    _used("`trace_based` (default): exemplars lead to spans that are sent; `always_off`: none.",
          "OTEL_METRICS_EXEMPLAR_FILTER"),
    _used("`explicit_bucket_histogram`, in place of `base2_exponential_bucket_histogram`.",
          "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"),
    _unused(_BATCHES, "OTEL_BSP_SCHEDULE_DELAY", "OTEL_BSP_EXPORT_TIMEOUT",
            "OTEL_BSP_MAX_QUEUE_SIZE", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"),
    _unused("`OTEL_EXPORTER_OTLP_METRICS_TIMEOUT` limits a request, which is then tried again",
            "OTEL_METRIC_EXPORT_TIMEOUT"),
    _used("Where the exporter `prometheus` listens (localhost, 9464).",
          "OTEL_EXPORTER_PROMETHEUS_HOST", "OTEL_EXPORTER_PROMETHEUS_PORT"),
    _used("Of an installed exporter to Zipkin, which reads them itself.",
          "OTEL_EXPORTER_ZIPKIN_ENDPOINT", "OTEL_EXPORTER_ZIPKIN_TIMEOUT"),
    _unused(_LOGS, "OTEL_LOGS_EXPORTER", "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT",
            "OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "OTEL_EXPORTER_OTLP_LOGS_HEADERS",
            "OTEL_EXPORTER_OTLP_LOGS_TIMEOUT", "OTEL_EXPORTER_OTLP_LOGS_COMPRESSION",
            "OTEL_BLRP_SCHEDULE_DELAY", "OTEL_BLRP_EXPORT_TIMEOUT", "OTEL_BLRP_MAX_QUEUE_SIZE",
            "OTEL_BLRP_MAX_EXPORT_BATCH_SIZE", "OTEL_LOGRECORD_ATTRIBUTE_VALUE_LENGTH_LIMIT",
            "OTEL_LOGRECORD_ATTRIBUTE_COUNT_LIMIT"),
    _unused("`OTEL_RESOURCE_ATTRIBUTES` adds what is to be in the resource",
            "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS", "OTEL_ENTITIES"),
    _unused("ids follow from run, phase and step, so that all ranks share a trace",
            "OTEL_PYTHON_ID_GENERATOR"),
    _unused("warnings go to the logger `otel_mlperf`", "OTEL_LOG_LEVEL"),
)  # fmt: skip


def describe_unused(environ: Mapping[str, str]) -> str:
    """Return a sentence about the standard variables that are set and not used, or empty."""
    told = [
        f"{', '.join(names)} ({variable.meaning.replace('`', '')})"
        for variable in STANDARD
        if not variable.is_used and (names := [n for n in variable.names if environ.get(n)])
    ]
    return f"set, but not used here: {'; '.join(told)}" if told else ""
