"""Settings of a run that commands read later, and destinations that they take from nobody else."""

from __future__ import annotations

import json

import pytest

from otel_mlperf.settings.run_settings import FILE, read_stored, with_endpoint, write_settings

SERVER = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}
QUIET = {
    "OTEL_MLPERF_TRACE_EVERY": "1",
    "OTEL_TRACES_SAMPLER": "traceidratio",
    "OTEL_SPAN_EVENT_COUNT_LIMIT": "2",
    "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "delta",
}
RUN = SERVER | QUIET


def test_settings_are_the_runs_and_destinations_the_callers(tmp_path):
    """Sampling, limits and encoding are as the run had them; where to send the caller decides."""
    write_settings(str(tmp_path), RUN | {"PATH": "/of/the/run"})
    there = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://elsewhere:4318",
        "OTEL_EXPORTER_OTLP_HEADERS": "key=of-elsewhere",
        "PATH": "/bin",
    }
    shell = there | {"OTEL_MLPERF_TRACE_EVERY": "1000", "OTEL_SPAN_LINK_COUNT_LIMIT": "7"}

    assert read_stored(tmp_path, shell) == (QUIET | there, SERVER)


def test_no_secret_is_kept(tmp_path):
    """Headers, logins in a URL and whatever looks like a secret are left out."""
    secrets = {
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Basic abc",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "x-team=vision",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://me:word@collector/v1/traces",
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "https://collector/v1/metrics?sig=abc",
        "OTEL_MLPERF_SOMEWHERE_TOKEN": "abc",
        "OTEL_RESOURCE_ATTRIBUTES": "team=vision,password=abc",
    }
    write_settings(str(tmp_path), RUN | secrets)

    assert json.loads((tmp_path / FILE).read_text()) == RUN


@pytest.mark.parametrize(
    "named",
    [
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://stranger:4318"},
        {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://stranger:4318/v1/traces"},
        {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://stranger:4318/v1/metrics"},
        {"OTEL_TRACES_EXPORTER": "otlp"},
        {"OTEL_METRICS_EXPORTER": "otlp"},
        {"MLFLOW_TRACKING_URI": "http://stranger:5000"},
        {"TRACKIO_DIR": "/stranger"},
        {"HF_HOME": "/stranger"},
    ],
    ids=lambda named: next(iter(named)),
)
def test_a_destination_that_only_the_run_folder_names_gets_nothing(tmp_path, named):
    """It is a hint for messages."""
    (tmp_path / FILE).write_text(json.dumps(named))

    assert read_stored(tmp_path, {"PATH": "/bin"}) == ({"PATH": "/bin"}, named)


@pytest.mark.parametrize(
    "setting",
    [
        {"OTEL_EXPORTER_OTLP_HEADERS": "key=word"},
        {"OTEL_EXPORTER_OTLP_INSECURE": "true"},
        {"OTEL_EXPORTER_OTLP_CERTIFICATE": "/ca.pem"},
        {"OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE": "/me.pem"},
        {"OTEL_EXPORTER_OTLP_CLIENT_KEY": "/me.key"},
        {"OTEL_CONFIG_FILE": "/otel.yaml"},
        {"OTEL_MLPERF_CONFIG": "/settings.yaml"},
        {"OTEL_MLPERF_ARCHIVE": "http://stranger"},
        {"MLFLOW_TRACKING_INSECURE_TLS": "true"},
        {"MLFLOW_TRACKING_TOKEN": "abc"},
        {"WANDB_BASE_URL": "http://stranger"},
        {"HTTPS_PROXY": "http://stranger"},
        {"LD_PRELOAD": "/stranger.so"},
    ],
    ids=lambda setting: next(iter(setting)),
)
def test_a_run_folder_decides_nothing_else_about_connections(tmp_path, setting):
    """Logins, certificates, proxies and destinations of other packages are the caller's."""
    (tmp_path / FILE).write_text(json.dumps(setting))

    assert read_stored(tmp_path, {"PATH": "/bin"}) == ({"PATH": "/bin"}, {})


def test_a_signal_that_the_run_did_not_send_stays_unsent(tmp_path):
    """A run folder may switch a signal off, not on."""
    none = {"OTEL_METRICS_EXPORTER": "none"}
    write_settings(str(tmp_path), QUIET | none)

    assert read_stored(tmp_path, SERVER).environ == RUN | none


def test_a_destination_that_would_command_a_terminal_is_no_hint(tmp_path):
    """Messages show hints, and the folder may be somebody else's."""
    (tmp_path / FILE).write_text(json.dumps({"MLFLOW_TRACKING_URI": "http://x/\x1b[2J"}))

    assert read_stored(tmp_path, {}) == ({}, {})


def test_an_endpoint_of_the_command_line_replaces_those_of_the_environment():
    """Otherwise one of a signal would still be used."""
    own = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://other:4318", "PATH": "/bin"}

    assert with_endpoint(own, "http://collector:4318") == SERVER | {"PATH": "/bin"}
    assert with_endpoint(own, None) == own


def test_a_run_without_a_server_is_sent_where_the_caller_says(tmp_path):
    """The run named none; neither did one of an earlier version."""
    shell = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://elsewhere:4318",
        "OTEL_EXPORTER_OTLP_HEADERS": "key=word",
    }
    before = read_stored(tmp_path, shell)
    write_settings(str(tmp_path), QUIET)

    assert before == (shell, {})
    assert read_stored(tmp_path, shell) == (QUIET | shell, {})


def test_experiment_and_run_of_mlflow_are_the_runs_on_the_callers_server_alone(tmp_path):
    """Their names mean something else on another server."""
    experiment = {"MLFLOW_EXPERIMENT_NAME": "digits", "MLFLOW_EXPERIMENT_ID": "7"}
    address = {"MLFLOW_TRACKING_URI": "https://me:word@mlflow/path?key=abc"}
    write_settings(str(tmp_path), experiment | address | {"MLFLOW_TRACKING_TOKEN": "abc"})
    kept = {"MLFLOW_TRACKING_URI": "https://mlflow/path"}
    same = {"MLFLOW_TRACKING_URI": "https://you:now@mlflow/path", "MLFLOW_TRACKING_TOKEN": "of-now"}
    other = {"MLFLOW_TRACKING_URI": "https://elsewhere", "MLFLOW_TRACKING_PASSWORD": "abc"}

    assert json.loads((tmp_path / FILE).read_text()) == kept | experiment
    assert read_stored(tmp_path, {}) == ({}, kept)
    assert read_stored(tmp_path, same).environ == same | experiment
    assert read_stored(tmp_path, other).environ == other


def test_file_of_weights_and_biases_is_completed_without_a_login(tmp_path):
    """The caller uploads it; its project is that of the run."""
    run = {"OTEL_MLPERF_DESTINATIONS": "wandb", "WANDB_PROJECT": "digits"}
    write_settings(str(tmp_path), run | {"WANDB_API_KEY": "abc", "WANDB_MODE": "online"})

    assert json.loads((tmp_path / FILE).read_text()) == run
    assert read_stored(tmp_path, {"WANDB_MODE": "online"}) == (run | {"WANDB_MODE": "offline"}, {})


def test_inbox_of_trackio_is_the_callers(tmp_path):
    """The run's own is a hint: a folder of somebody else's could name any place."""
    run = {"OTEL_MLPERF_DESTINATIONS": "trackio", "TRACKIO_PROJECT": "digits"}
    places = {"TRACKIO_DIR": "/all", "HF_HOME": "/hub"}
    write_settings(str(tmp_path), run | places | {"HF_TOKEN": "abc"})
    mine = {"TRACKIO_DIR": "/mine"}

    assert json.loads((tmp_path / FILE).read_text()) == run | places
    assert read_stored(tmp_path, mine) == (run | mine, places)


def test_a_variable_may_have_any_bytes(tmp_path):
    """What JSON cannot carry is left out: the run begins all the same."""
    write_settings(str(tmp_path), RUN | {"OTEL_SERVICE_NAME": "a\udcff", "OTEL_\udcfe": "b"})

    assert read_stored(tmp_path, {}) == (QUIET, SERVER)
