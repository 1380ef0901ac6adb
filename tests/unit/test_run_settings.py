"""Is what a run left read and sent with the settings that the run had?"""

from __future__ import annotations

import json

from otel_mlperf.run_settings import FILE, as_recorded, write_settings

RUN = {
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318",
    "OTEL_MLPERF_KEEP_EVERY": "1",
}


def test_the_runs_settings_are_in_force_and_not_the_shells(tmp_path):
    """Sampling and server are the run's; what is no setting is the shell's."""
    write_settings(str(tmp_path), RUN | {"PATH": "/of/the/run"})
    shell = {
        "PATH": "/bin",
        "OTEL_MLPERF_KEEP_EVERY": "1000",
        "OTEL_MLPERF_SLOW_RATIO": "7",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://elsewhere:4318",
        "OTEL_EXPORTER_OTLP_HEADERS": "key=of-elsewhere",
    }

    assert as_recorded(tmp_path, shell) == RUN | {"PATH": "/bin"}


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


def test_headers_of_the_shell_go_to_the_runs_server_alone(tmp_path):
    """They are used where the shell names that server: the run folder may be somebody else's."""
    write_settings(str(tmp_path), RUN)
    headers = {"OTEL_EXPORTER_OTLP_HEADERS": "key=word"}
    same = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}

    assert as_recorded(tmp_path, headers | same) == RUN | headers
    assert as_recorded(tmp_path, headers) == RUN


def test_headers_go_to_no_second_server_that_a_run_folder_names(tmp_path):
    """The server of all signals is the shell's, that of one signal is somebody else's."""
    other = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://elsewhere:4318/v1/traces"}
    write_settings(str(tmp_path), RUN | other)
    shell = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318",
        "OTEL_EXPORTER_OTLP_HEADERS": "key=word",
    }

    assert as_recorded(tmp_path, shell) == RUN | other


def test_a_run_folder_turns_off_no_protection(tmp_path):
    """Only who delivers decides whether a server's certificate is looked at."""
    unsafe = {"OTEL_EXPORTER_OTLP_INSECURE": "true", "MLFLOW_TRACKING_INSECURE_TLS": "true"}
    write_settings(str(tmp_path), RUN | unsafe)

    assert as_recorded(tmp_path, {}) == RUN
    assert as_recorded(tmp_path, unsafe) == RUN | unsafe


def test_a_run_without_a_server_is_sent_where_the_shell_says(tmp_path):
    """Nothing was said by the run; so was nothing by one of an earlier version."""
    quiet = {"OTEL_MLPERF_KEEP_EVERY": "1"}
    shell = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://elsewhere:4318",
        "OTEL_EXPORTER_OTLP_HEADERS": "key=word",
    }
    before = as_recorded(tmp_path, shell)
    write_settings(str(tmp_path), quiet)

    assert before == shell
    assert as_recorded(tmp_path, shell) == quiet | shell


def test_a_tracking_server_is_kept_without_its_login(tmp_path):
    """What waits for it later goes there, with the login of whoever delivers."""
    experiment = {"MLFLOW_EXPERIMENT_NAME": "digits", "MLFLOW_EXPERIMENT_ID": "7"}
    experiment |= {"MLFLOW_TRACKING_CLIENT_CERT_PATH": "/me.pem"}
    address = {"MLFLOW_TRACKING_URI": "https://me:word@mlflow/path?key=abc"}
    write_settings(str(tmp_path), experiment | address | {"MLFLOW_TRACKING_TOKEN": "abc"})

    kept = experiment | {"MLFLOW_TRACKING_URI": "https://mlflow/path"}
    assert json.loads((tmp_path / FILE).read_text()) == kept
    del kept["MLFLOW_TRACKING_CLIENT_CERT_PATH"]  # whoever delivers names one
    token = {"MLFLOW_TRACKING_TOKEN": "of-now"}
    same = {"MLFLOW_TRACKING_URI": "https://you:now@mlflow/path"}
    assert as_recorded(tmp_path, token) == kept
    assert as_recorded(tmp_path, same | token) == kept | same | token


def test_a_login_goes_to_no_other_tracking_server(tmp_path):
    """It is that of the server that the shell names."""
    write_settings(str(tmp_path), {"MLFLOW_TRACKING_URI": "https://mlflow"})
    shell = {"MLFLOW_TRACKING_URI": "https://elsewhere", "MLFLOW_TRACKING_PASSWORD": "abc"}

    assert as_recorded(tmp_path, shell) == {"MLFLOW_TRACKING_URI": "https://mlflow"}


def test_file_of_weights_and_biases_is_completed_without_a_login(tmp_path):
    """Whoever delivers later uploads it himself; its project is that of the run."""
    run = {"OTEL_MLPERF_DESTINATIONS": "wandb", "WANDB_PROJECT": "digits"}
    write_settings(str(tmp_path), run | {"WANDB_API_KEY": "abc", "WANDB_MODE": "online"})

    assert json.loads((tmp_path / FILE).read_text()) == run
    assert as_recorded(tmp_path, {"WANDB_MODE": "online"}) == run | {"WANDB_MODE": "offline"}


def test_inbox_of_trackio_is_the_runs(tmp_path):
    """Whoever delivers later puts the rest beside what is there."""
    run = {"OTEL_MLPERF_DESTINATIONS": "trackio", "TRACKIO_DIR": "/all", "HF_HOME": "/hub"}
    write_settings(str(tmp_path), run | {"HF_TOKEN": "abc"})

    assert json.loads((tmp_path / FILE).read_text()) == run
    assert as_recorded(tmp_path, {"TRACKIO_DIR": "/mine"}) == run


def test_a_variable_may_have_any_bytes(tmp_path):
    """What JSON cannot carry is left out: the run begins all the same."""
    write_settings(str(tmp_path), RUN | {"OTEL_SERVICE_NAME": "a\udcff", "OTEL_\udcfe": "b"})

    assert as_recorded(tmp_path, {}) == RUN


def test_certificates_are_those_of_who_delivers(tmp_path):
    """A folder of somebody else must not present this user's certificate, nor say whom to trust."""
    certificates = {
        "OTEL_EXPORTER_OTLP_CERTIFICATE": "/ca.pem",
        "OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE": "/me.pem",
        "OTEL_EXPORTER_OTLP_CLIENT_KEY": "/me.key",
    }
    write_settings(str(tmp_path), RUN | certificates)

    assert as_recorded(tmp_path, {}) == RUN
    assert as_recorded(tmp_path, RUN | certificates) == RUN | certificates
