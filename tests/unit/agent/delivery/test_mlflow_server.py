"""MLflow's own variables mean here what they mean to MLflow."""

from __future__ import annotations

import base64

import pytest

from otel_mlperf.agent.delivery.mlflow_server import read_mlflow_settings

LOGIN = {"MLFLOW_TRACKING_USERNAME": "me", "MLFLOW_TRACKING_PASSWORD": "word"}
TOKEN = {"MLFLOW_TRACKING_TOKEN": "abc"}


def settings(uri="https://host/mlflow/", **more):
    return read_mlflow_settings({"MLFLOW_TRACKING_URI": uri} | more)


def basic(login):
    return {"authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}


@pytest.mark.parametrize(
    ("said", "headers"),
    [
        ({}, {}),
        (TOKEN, {"authorization": "Bearer abc"}),
        (LOGIN, basic("me:word")),
        (LOGIN | TOKEN, basic("me:word")),
        ({"MLFLOW_TRACKING_USERNAME": "me"} | TOKEN, {"authorization": "Bearer abc"}),
    ],
)
def test_login_is_a_name_with_a_password_or_a_token(said, headers):
    """In this order, as MLflow has it."""
    assert settings(**said).server.headers == headers


def test_login_of_an_address_is_taken_out_of_it():
    """The rest of it is safe to show."""
    server = settings("https://me:w%40rd@host:5000/").server

    assert (server.endpoint, server.headers) == ("https://host:5000", basic("me:w@rd"))
    assert "w@rd" not in repr(server)


@pytest.mark.parametrize(("said", "is_verified"), [("true", False), ("1", False), ("false", True)])
def test_certificate_is_looked_at_unless_somebody_says_no(said, is_verified):
    """By MLflow's variable for it."""
    assert settings(MLFLOW_TRACKING_INSECURE_TLS=said).server.is_verified is is_verified
    assert settings(MLFLOW_TRACKING_SERVER_CERT_PATH="/ca.pem").server.certificate == "/ca.pem"


def test_client_shows_the_certificate_of_mlflows_own_variable():
    """One file, in which the key is too."""
    server = settings(MLFLOW_TRACKING_CLIENT_CERT_PATH="/me.pem").server

    assert (server.client_certificate, server.client_key) == ("/me.pem", None)
    assert settings().server.client_certificate is None


def test_experiment_is_mlflows_own_where_none_is_named():
    """As for whoever uses MLflow itself."""
    name, number = {"MLFLOW_EXPERIMENT_NAME": "digits"}, {"MLFLOW_EXPERIMENT_ID": "7"}

    asked = [settings(**said) for said in ({}, name, number, name | number)]
    assert [(one.experiment, one.experiment_id) for one in asked] == [
        ("Default", ""), ("digits", ""), ("", "7"), ("digits", "7"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("uri", "said", "is_readable"),
    [
        ("http://tracking:5000", TOKEN, True),
        ("https://tracking", TOKEN, False),
        ("http://localhost:5000", TOKEN, False),
        ("http://tracking:5000", {}, False),
    ],
)
def test_login_that_others_can_read_is_known(uri, said, is_readable):
    """MLflow sends it all the same, and so it goes there; the agent's log says it."""
    assert settings(uri, **said).is_login_readable is is_readable
