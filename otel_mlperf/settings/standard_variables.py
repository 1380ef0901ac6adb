"""Table of the environment variables of OpenTelemetry's specification, and their effect here.

The table follows specification 1.60: general and SDK variables, and those of the OTLP, Prometheus
and Zipkin exporters. The start of a run warns about variables that are set but not used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class StandardVariable(NamedTuple):
    """One or several standard variables with a common effect."""

    names: tuple[str, ...]
    meaning: str
    """Effect of the variables; if they are unused, the alternative."""
    is_used: bool = True


def _used(meaning: str, *names: str) -> StandardVariable:
    return StandardVariable(names, meaning)


def _otlp(ending: str, meaning: str) -> StandardVariable:
    middles = ("", "TRACES_", "METRICS_")
    return _used(meaning, *(f"OTEL_EXPORTER_OTLP_{middle}{ending}" for middle in middles))


def _unused(instead: str, *names: str) -> StandardVariable:
    return StandardVariable(names, instead, is_used=False)


_BATCHES: Final = "the agent sends batches of at most 2 MiB and adapts to the load itself"
_LOGS: Final = "logs are not exported: `om.log_ids()` adds trace and span ids to the program's logs"

STANDARD: Final = (
    _used("`true`: record nothing; any other value means `false`.", "OTEL_SDK_DISABLED"),
    _used("Resource attribute `service.name` (default: the name of the run).", "OTEL_SERVICE_NAME"),
    _used("Additional resource attributes: comma-separated `name=value`.",
          "OTEL_RESOURCE_ATTRIBUTES"),
    _used("Formats of trace headers; read by the OpenTelemetry API.", "OTEL_PROPAGATORS"),
    _used("File of OpenTelemetry's declarative configuration.",
          "OTEL_CONFIG_FILE", "OTEL_EXPERIMENTAL_CONFIG_FILE"),
    _used("Comma-separated exporters of the signal: `otlp`, `none`, or names of installed "
          "exporters of the OpenTelemetry SDK (opentelemetry.md).",
          "OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER"),
    _used("Sampler of sent traces: `always_on`, `always_off`, `traceidratio` or one of these "
          "after `parentbased_` (default: all recorded traces are sent). It selects among the "
          "recorded [traces](traces.md).", "OTEL_TRACES_SAMPLER"),
    _used("Ratio of `traceidratio`, from 0 to 1 (default: 1).", "OTEL_TRACES_SAMPLER_ARG"),
    _used("Limits of the attributes and events of spans. They can only lower the fixed limits: 64 "
          "attributes of 4,096 bytes, 8 events of 16 attributes. A larger limit causes a warning.",
          "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_ATTRIBUTE_COUNT_LIMIT",
          "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT",
          "OTEL_SPAN_EVENT_COUNT_LIMIT", "OTEL_SPAN_LINK_COUNT_LIMIT",
          "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT", "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT"),
    _used("Interval between two exports of metrics, in milliseconds.",
          "OTEL_METRIC_EXPORT_INTERVAL"),
    _otlp("ENDPOINT", "OTLP endpoint. The variable of a single signal contains the complete URL. "
          "For gRPC, host and port, e.g. `http://localhost:4317`; the scheme is optional, a path "
          "is ignored."),
    _otlp("PROTOCOL", "`http/protobuf` (default) or `grpc`."),
    _otlp("HEADERS", "Headers of each request (gRPC: metadata): comma-separated `name=value`."),
    _otlp("TIMEOUT", "Timeout of a request in milliseconds (default: 10000)."),
    _otlp("COMPRESSION", "Compression of requests: `gzip` or `none`."),
    _otlp("INSECURE", "`true`: headers are also sent to other hosts over plain HTTP; for gRPC, "
          "connect without TLS if the endpoint has no scheme."),
    _otlp("CERTIFICATE", "File with trusted certificate authorities (default: the system's)."),
    _otlp("CLIENT_CERTIFICATE", "File with the client's certificate (mTLS)."),
    _otlp("CLIENT_KEY", "File with the private key of the client's certificate."),
    _used("Temporality of metrics: `cumulative` (default), `delta` or `lowmemory`; Prometheus "
          "requires `cumulative`.",
          "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"),
    _used("`trace_based` (default): exemplars link to spans that are sent; `always_off`: none.",
          "OTEL_METRICS_EXEMPLAR_FILTER"),
    _used("`base2_exponential_bucket_histogram` (default) or `explicit_bucket_histogram`.",
          "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"),
    _unused(_BATCHES, "OTEL_BSP_SCHEDULE_DELAY", "OTEL_BSP_EXPORT_TIMEOUT",
            "OTEL_BSP_MAX_QUEUE_SIZE", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"),
    _unused("`OTEL_EXPORTER_OTLP_METRICS_TIMEOUT` limits each request; failed requests are retried",
            "OTEL_METRIC_EXPORT_TIMEOUT"),
    _used("Host and port of the exporter `prometheus` (default: localhost, 9464).",
          "OTEL_EXPORTER_PROMETHEUS_HOST", "OTEL_EXPORTER_PROMETHEUS_PORT"),
    _used("Settings of an installed Zipkin exporter, which reads them itself.",
          "OTEL_EXPORTER_ZIPKIN_ENDPOINT", "OTEL_EXPORTER_ZIPKIN_TIMEOUT"),
    _unused(_LOGS, "OTEL_LOGS_EXPORTER", "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT",
            "OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "OTEL_EXPORTER_OTLP_LOGS_HEADERS",
            "OTEL_EXPORTER_OTLP_LOGS_TIMEOUT", "OTEL_EXPORTER_OTLP_LOGS_COMPRESSION",
            "OTEL_BLRP_SCHEDULE_DELAY", "OTEL_BLRP_EXPORT_TIMEOUT", "OTEL_BLRP_MAX_QUEUE_SIZE",
            "OTEL_BLRP_MAX_EXPORT_BATCH_SIZE", "OTEL_LOGRECORD_ATTRIBUTE_VALUE_LENGTH_LIMIT",
            "OTEL_LOGRECORD_ATTRIBUTE_COUNT_LIMIT"),
    _unused("resource attributes are added by `OTEL_RESOURCE_ATTRIBUTES` alone",
            "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS", "OTEL_ENTITIES"),
    _unused("ids are derived from run, phase and step, so all ranks share a trace",
            "OTEL_PYTHON_ID_GENERATOR"),
    _unused("warnings go to the logger `otel_mlperf`", "OTEL_LOG_LEVEL"),
)  # fmt: skip


def describe_unused(environ: Mapping[str, str]) -> str:
    """Return a warning about standard variables that are set but unused; empty if none is."""
    unused = [
        f"{', '.join(names)} ({variable.meaning.replace('`', '')})"
        for variable in STANDARD
        if not variable.is_used and (names := [n for n in variable.names if environ.get(n)])
    ]
    return f"set, but not used by otel_mlperf: {'; '.join(unused)}" if unused else ""
