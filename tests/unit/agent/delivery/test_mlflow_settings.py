"""Do MLflow's own variables say here what they say to MLflow?"""

from __future__ import annotations

import base64

import pytest

from otel_mlperf.agent.delivery.mlflow_settings import read_mlflow_settings

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


def test_experiment_is_mlflows_own_where_none_is_named():
    """As for whoever uses MLflow itself."""
    assert settings().experiment == "Default"
    assert settings(MLFLOW_EXPERIMENT_NAME="digits").experiment == "digits"


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
