"""A tracker is chosen by its name, and a missing requirement is reported before any work."""

from __future__ import annotations

import sys

import pytest
import warm_python
from runs import environment

import otel_mlperf as om
from otel_mlperf.settings.config import Config
from otel_mlperf.settings.tracker_list import unusable


@pytest.mark.parametrize("given", [" tensorboard,, tensorboard", ["tensorboard"]])
def test_trackers_are_named_by_commas_or_in_a_list(given):
    """As every setting of several words."""
    assert Config(destinations=given).destinations == "tensorboard"


def test_unknown_tracker_is_refused_with_those_that_are_known():
    """Before any work is done."""
    with pytest.raises(om.ConfigError, match="found 'tensorbord', expected some of tensorboard"):
        Config(destinations="tensorbord")


def test_argument_that_asks_for_what_is_not_installed_is_an_error(tmp_path, monkeypatch):
    """It says what installs it, and nothing has begun."""
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(om.ConfigError, match=r"pip install 'otel-mlperf\[tensorboard\]'"):
        om.start(destinations="tensorboard", dir=str(tmp_path))

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("uri", "found"),
    [
        (None, "is not set"),
        (" ", "is not set"),
        ("sqlite:///mlflow.db", "is 'sqlite:///mlflow.db'"),
        ("file:///mlruns", "is 'file:///mlruns'"),
        ("databricks", "is 'databricks'"),
        ("http:///path", "is 'http:///path'"),
        ("ftp://me:hunter2@host?key=hunter3", "is 'host'"),
    ],
)
def test_mlflow_without_a_server_is_refused(tmp_path, monkeypatch, uri, found):
    """It says which variable, what was found, and how a server is started; never a login."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    if uri is not None:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(om.ConfigError) as error:
        om.start(destinations="mlflow", dir=str(tmp_path))

    assert f"MLFLOW_TRACKING_URI {found}, expected e.g. http://localhost:5000" in str(error.value)
    assert "hunter" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("uri", ["http://host:5000", "https://me:word@host/mlflow/"])
def test_mlflow_with_a_server_lacks_nothing(uri):
    """Whether it answers is seen when it is told something."""
    assert unusable("mlflow", {"MLFLOW_TRACKING_URI": uri}) == []


def test_trackio_in_a_folder_below_somewhere_is_refused(tmp_path, monkeypatch):
    """The agent's working directory is another; nothing else is needed."""
    monkeypatch.setenv("TRACKIO_DIR", "metrics")
    with pytest.raises(om.ConfigError, match="TRACKIO_DIR is 'metrics', expected /…"):
        om.start(destinations="trackio", dir=str(tmp_path))

    assert unusable("trackio", {}) == unusable("trackio", {"TRACKIO_DIR": "/metrics"}) == []


def test_wandb_in_another_mode_is_refused(tmp_path, monkeypatch):
    """It says which variable, what was found, and what it may be."""
    monkeypatch.setenv("WANDB_MODE", "disabled")
    with pytest.raises(om.ConfigError, match="WANDB_MODE is 'disabled', expected online or off"):
        om.start(destinations="wandb", dir=str(tmp_path))

    assert list(tmp_path.iterdir()) == []


NETRC = "machine api.wandb.ai\n  login user\n  password hunter2\n"


@pytest.mark.parametrize(
    ("known", "netrc", "has_login"),
    [
        ({}, "", False),
        ({}, "machine", False),
        ({}, NETRC, True),
        ({"WANDB_BASE_URL": "https://api.wandb.ai/"}, NETRC, True),
        ({"WANDB_BASE_URL": "http://own:8080"}, NETRC, False),
        ({"WANDB_BASE_URL": "http://own:8080", "WANDB_API_KEY": "hunter2"}, "", True),
        ({"WANDB_IDENTITY_TOKEN_FILE": "/token"}, "", True),
    ],
)
def test_wandb_that_uploads_needs_a_login(tmp_path, known, netrc, has_login):
    """As its own client finds one; what is missing is said, never the login."""
    (tmp_path / "netrc").write_text(netrc)
    lacks = "".join(unusable("wandb", known | {"NETRC": str(tmp_path / "netrc")}))

    assert ("wandb requires a login: WANDB_API_KEY is not set" in lacks) != has_login
    assert "hunter2" not in lacks


def test_folder_of_a_trackers_files_is_no_package(tmp_path, monkeypatch):
    """W&B leaves ``wandb`` in the working directory, which Python could import."""
    (tmp_path / "wandb").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if "wandb-" not in path])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)

    (lack,) = unusable("wandb", {"WANDB_MODE": "offline"})
    assert lack == "wandb is not installed: pip install 'otel-mlperf[wandb]'"


PROGRAM = """
import sys
import otel_mlperf as om
if sys.argv[1] == "missing":
    sys.modules["tensorboard"] = None
with om.start(console=False):
    for _ in om.steps(range(3)):
        pass
print("trained", "tensorboard.compat" in sys.modules)
"""


@pytest.mark.parametrize("case", ["missing", "installed"])
def test_variable_never_stops_a_training(tmp_path, case):
    """A tracker that is missing is said once; one that is there is not loaded by the program."""
    command = [sys.executable, "-c", PROGRAM, case]
    chosen = {"OTEL_MLPERF_DESTINATIONS": "tensorboard", "OTEL_MLPERF_AGENT": "none"}
    environ = environment(tmp_path / "runs", **chosen)
    done = warm_python.run(command, env=environ, capture_output=True, text=True, check=True)

    assert done.stdout == "trained False\n"
    said = "OTEL_MLPERF_DESTINATIONS: tensorboard is not installed: pip install 'otel-mlperf"
    assert done.stderr.count(said) == (case == "missing")
