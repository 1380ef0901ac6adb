"""The settings of a file of OpenTelemetry's declarative configuration take effect."""

from __future__ import annotations

import pytest

from otel_mlperf.otlp.endpoint_settings import read_metric_settings, read_settings
from otel_mlperf.recorder.lifecycle.run_identity import parse_resource
from otel_mlperf.settings.declared_config import declare
from otel_mlperf.settings.load_config import load_config

WHOLE = """
file_format: "1.0"
resource:
  attributes:
    - name: service.name
      value: digits
    - name: team
      value: vision, night
      type: string
  attributes_list: "team=left,zone=a%20b"
propagator:
  composite:
    - tracecontext:
    - b3:
  composite_list: "baggage,tracecontext"
tracer_provider:
  processors:
    - batch:
        exporter:
          otlp_http:
            endpoint: ${COLLECTOR:-https://collector.example:4318}/v1/traces
            headers:
              - name: authorization
                value: Bearer ${env:TOKEN}
              - name: x-tenant
                value: "a,b"
            headers_list: "x-tenant=list,x-more=1"
            timeout: 5000
            compression: none
            encoding: protobuf
            tls:
              ca_file: ca.pem
              key_file: key.pem
              cert_file: cert.pem
meter_provider:
  readers:
    - periodic:
        interval: ${INTERVAL:-30000}
        exporter:
          otlp_http:
            endpoint: https://metrics.example/v1/metrics
            temporality_preference: cumulative
            default_histogram_aggregation: explicit_bucket_histogram
"""


@pytest.fixture
def declared(tmp_path):
    """Writes a file; gives what it says, and what is wrong with it."""

    def write(text, variable="OTEL_CONFIG_FILE", **environ):
        (tmp_path / "otel.yaml").write_text(text)
        return declare({**environ, variable: str(tmp_path / "otel.yaml")})

    return write


def test_everything_that_can_be_used(declared):
    """Resource, endpoints, headers, TLS, times, aggregation are those of the file."""
    said, warnings = declared(WHOLE, TOKEN="s3=cr,t")
    assert warnings == []
    assert parse_resource(load_config(environ=said).resource) == {
        "service.name": "digits", "team": "vision, night", "zone": "a b",
    }  # fmt: skip
    assert load_config(environ=said).metric_interval_ms == 30_000
    assert said["OTEL_PROPAGATORS"] == "tracecontext,b3,baggage"

    traces, wrong = read_settings(said, "traces")
    assert [text for text in wrong if ".pem" not in text] == []
    assert traces.endpoint == "https://collector.example:4318/v1/traces"
    assert traces.headers == {
        "authorization": "Bearer s3=cr,t", "x-tenant": "a,b", "x-more": "1",
    }  # fmt: skip
    assert (traces.timeout_s, traces.gzip) == (5.0, False)
    files = (traces.certificate, traces.client_key, traces.client_certificate)
    assert files == ("ca.pem", "key.pem", "cert.pem")
    metrics, _ = read_settings(said, "metrics")
    assert (metrics.endpoint, metrics.headers) == ("https://metrics.example/v1/metrics", {})
    assert read_metric_settings(said)[0].explicit_buckets


def test_exporter_that_prints(declared):
    """It is listed, beside OTLP where both are there."""
    text = """
file_format: "1.0"
tracer_provider:
  processors: [{simple: {exporter: {console: }}}, {batch: {exporter: {otlp_grpc: }}}]
meter_provider:
  readers: [{periodic: {exporter: {console: {}}}}]
"""
    said, warnings = declared(text)
    assert warnings == []
    assert said["OTEL_TRACES_EXPORTER"] == "console,otlp"
    assert said["OTEL_METRICS_EXPORTER"] == "console"
    assert read_settings(said, "traces")[0].is_grpc
    assert read_settings(said, "metrics") == (None, [])


def test_order(declared):
    """Argument, own variable, file; the standard's variables mean nothing beside a file."""
    text = "file_format: '1.0'\nresource: {attributes: [{name: service.name, value: file}]}\n"
    said, warnings = declared(
        text, OTEL_SERVICE_NAME="variable", OTEL_EXPORTER_OTLP_ENDPOINT="http://variable:4318",
        OTEL_MLPERF_TRACE_EVERY="7", OTEL_SDK_DISABLED="true", HOME="/home",
    )  # fmt: skip
    config = load_config({"trace_first": 9}, environ=said)

    assert warnings == []
    assert (config.service_name, config.endpoint) == ("", "")
    assert (config.trace_first, config.trace_every, config.disabled) == (9, 7, True)
    assert said["HOME"] == "/home"
    assert read_settings(said, "traces") == (None, [])
    assert "OTEL_CONFIG_FILE" not in said


def test_variable_of_the_experiment(declared, tmp_path):
    """The older variable names the file, too, where the other one does not."""
    text = "file_format: '1.0'\ndisabled: true\n"
    assert declared(text, "OTEL_EXPERIMENTAL_CONFIG_FILE")[0]["OTEL_SDK_DISABLED"] == "true"
    first = tmp_path / "first.yaml"
    first.write_text("file_format: '1.0'\ndisabled: false\n")
    said, _ = declared(text, "OTEL_EXPERIMENTAL_CONFIG_FILE", OTEL_CONFIG_FILE=str(first))
    assert "OTEL_SDK_DISABLED" not in said


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("${A}", "one"), ("${env:A}", "one"), ("x${A}-${B:-two}y", "xone-twoy"), ("$${A}", "${A}"),
        ("${EMPTY:-z}", "z"), ("${EMPTY:-}", ""), ("${NEVER}", ""), ("'${A}'", "one"),
        ("${B:-http://h:1/p}", "http://h:1/p"),
    ],
)  # fmt: skip
def test_variables_in_values(declared, written, value):
    """References are put in as the standard has them; a default may hold anything but a brace."""
    text = f"file_format: '1.0'\nresource: {{attributes_list: {written}}}\n"
    if "{" in written and not written.startswith("'"):
        text = f'file_format: "1.0"\nresource:\n  attributes_list: {written}\n'
    said, warnings = declared(text, A="one", EMPTY="")
    assert said.get("OTEL_RESOURCE_ATTRIBUTES", "") == value
    assert warnings == []


def test_kind_of_a_value_is_told_after_the_variables(declared):
    """What a variable holds is a number or a truth where it stands without quotes, never YAML."""
    text = 'file_format: "1.0"\ndisabled: ${OFF}\nresource:\n  attributes_list: ${LIST}\n'
    said, warnings = declared(text, OFF="TRUE", LIST="[a, b]")
    assert said["OTEL_SDK_DISABLED"] == "true"
    assert said["OTEL_RESOURCE_ATTRIBUTES"] == "[a, b]"
    assert warnings == []


def test_what_is_not_used_is_named_once(declared):
    """By its place in the file; what it holds, keys perhaps, is not shown."""
    (warning,) = declared("""
file_format: "1.0"
log_level: debug
attribute_limits: {attribute_count_limit: 3}
tracer_provider:
  sampler: {always_on: }
  processors:
    - simple: {exporter: {console: }}
    - batch:
        schedule_delay: 5
        exporter: {otlp_http: {headers: [{name: key, value: s3cret, other: s3cret}]}}
    - batch: {exporter: {otlp_http: {headers_list: key=s3cret}}}
logger_provider: {processors: []}
""")[1]

    places = warning.partition("unsupported settings are ignored: ")[2].split(", ")
    assert sorted(places) == [
        "attribute_limits",
        "log_level",
        "logger_provider",
        "tracer_provider.processors[1].batch.exporter.otlp_http.headers[0].other",
        "tracer_provider.processors[1].batch.schedule_delay",
        "tracer_provider.processors[2].batch.exporter.otlp_http",
        "tracer_provider.sampler",
    ]
    assert "s3cret" not in warning


def test_exporters_by_default(declared):
    """An exporter without settings sends to this machine; one by gRPC is spoken to by gRPC."""
    text = """
file_format: "1.0"
tracer_provider: {processors: [{batch: {exporter: {otlp_grpc: {tls: {ca_file: /ca}}}}}]}
meter_provider: {readers: [{periodic: {exporter: {otlp_http: }}}]}
"""
    said, warnings = declared(text)
    traces, wrong = read_settings(said, "traces")
    assert warnings == []
    assert (traces.is_grpc, traces.endpoint) == (True, "http://localhost:4317")
    assert traces.certificate == "/ca"
    assert wrong == [
        "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE=/ca: No such file or directory: nothing can be sent"
    ]
    assert read_settings(said, "metrics")[0].endpoint == "http://localhost:4318/v1/metrics"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("file_format: '0.4'\n", "file_format is '0.4', expected 1.0"),
        ("resource: {}\n", "file_format is 'none', expected 1.0"),
        ("- a\n", "found a list"),
        ("", "found a NoneType"),
        ("a: [\n", "expected the node content"),
        ("file_format: '1.0'\nx: ${1a}\n", "'${1a}' is not a valid reference"),
        ("[" * 5000, "recursion"),
        ("!!python/object/apply:os.system [ls]\n", "could not determine a constructor"),
    ],
)
def test_file_that_cannot_be_used(declared, text, reason):
    """It is said why, and the variables count as if there were no file."""
    said, (warning,) = declared(text, OTEL_SERVICE_NAME="variable")
    assert reason in warning
    assert said == {"OTEL_SERVICE_NAME": "variable"}


def test_file_that_is_not_there():
    """The same of one that does not exist; with none named nothing is looked at."""
    environ = {"OTEL_CONFIG_FILE": "nowhere.yaml", "OTEL_SERVICE_NAME": "variable"}
    said, (warning,) = declare(environ)
    assert "No such file" in warning
    assert said == {"OTEL_SERVICE_NAME": "variable"}
    assert declare(said) == (said, [])


@pytest.mark.parametrize(
    "text",
    [
        "propagator: 3",
        "resource: [1]",
        "tracer_provider: {processors: x}",
        "meter_provider: {readers: [3, {periodic: 4}, null]}",
        "resource: {attributes: [{name: [a], value: {b: 1}}, 7]}",
        "x: &a [*a, '${A}']",
    ],
)
def test_shapes_that_nobody_expects(declared, text):
    """A value of another shape than the standard's is not used, and named."""
    said, warnings = declared(f"file_format: '1.0'\n{text}\n")
    assert said == {}
    assert len(warnings) == 1
