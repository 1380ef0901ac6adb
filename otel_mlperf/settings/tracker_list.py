"""Experiment trackers to which data can be sent, and checks of their requirements.

The training process runs the checks, but only the agent imports the trackers' packages.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

TENSORBOARD: Final = "tensorboard"
MLFLOW: Final = "mlflow"
WANDB: Final = "wandb"
TRACKIO: Final = "trackio"
TRACKERS: Final = (TENSORBOARD, MLFLOW, WANDB, TRACKIO)
MLFLOW_URI: Final = "MLFLOW_TRACKING_URI"
"""Variable with the address of the tracking server, which MLflow itself reads."""
WANDB_MODE: Final = "WANDB_MODE"
TRACKIO_DIR: Final = "TRACKIO_DIR"
HF_HOME: Final = "HF_HOME"
OFFLINE: Final = "offline"
"""Value of ``WANDB_MODE`` with which W&B writes a file without uploading it."""


def trackio_folder(environ: Mapping[str, str]) -> str:
    """Return the folder in which trackio stores its data according to trackio's own rules."""
    cache = environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    home = os.path.expanduser(environ.get(HF_HOME) or f"{cache}/huggingface")
    return environ.get(TRACKIO_DIR) or f"{home}/trackio"


def unusable(names: str, environ: Mapping[str, str]) -> list[str]:
    """Return a message for each unusable tracker of the comma-separated ``names``."""
    checks = {
        TENSORBOARD: _of_tensorboard,
        MLFLOW: _of_mlflow,
        WANDB: _of_wandb,
        TRACKIO: _of_trackio,
    }
    messages = [checks[name](environ) for name in filter(None, names.split(","))]
    return [*filter(None, messages)]


def _of_tensorboard(_: Mapping[str, str]) -> str:
    return _not_installed(TENSORBOARD)


def _of_mlflow(environ: Mapping[str, str]) -> str:
    uri = environ.get(MLFLOW_URI, "").strip()
    scheme, mark, rest = uri.partition("://")
    host = rest.partition("/")[0].rpartition("@")[2]
    if mark and scheme in ("http", "https") and host and uri.isprintable() and " " not in uri:
        return ""
    # Shown without login and query: even an invalid address may contain secrets there.
    found = repr(uri.rpartition("@")[2].partition("?")[0]) if uri else "not set"
    return (
        f"mlflow requires the address of a tracking server: {MLFLOW_URI} is {found}, expected e.g. "
        "http://localhost:5000 (mlflow server --backend-store-uri sqlite:///mlflow.db)"
    )


def _of_wandb(environ: Mapping[str, str]) -> str:
    mode = environ.get(WANDB_MODE, "").strip() or "online"
    if mode not in ("online", OFFLINE):
        return (
            f"wandb does not receive the run: {WANDB_MODE} is {mode!r}, expected online or offline"
        )
    if mode == "online" and not _has_wandb_login(environ):
        return (
            "wandb requires a login: WANDB_API_KEY is not set, and ~/.netrc has no login for the "
            f"server; log in with `wandb login`, or set {WANDB_MODE}=offline"
        )
    return _not_installed(WANDB)


def _of_trackio(environ: Mapping[str, str]) -> str:
    folder = environ.get(TRACKIO_DIR, "")
    if folder and not folder.startswith("/"):  # the agent's working directory differs
        return f"trackio requires an absolute path: {TRACKIO_DIR} is {folder!r}, expected /…"
    return ""


def _has_wandb_login(environ: Mapping[str, str]) -> bool:
    """Return whether W&B's client would find a login; its validity is not checked."""
    if environ.get("WANDB_API_KEY") or environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    from netrc import NetrcParseError, netrc
    from os.path import expanduser

    server = environ.get("WANDB_BASE_URL", "").strip().rstrip("/").rpartition("//")[2]
    try:
        hosts = netrc(expanduser(environ.get("NETRC") or "~/.netrc")).hosts
    except (OSError, NetrcParseError):
        return False
    # Without WANDB_BASE_URL, W&B's version and settings file determine the server: accept any.
    return server.partition("/")[0] in hosts if server else bool(hosts)


def _not_installed(package: str) -> str:
    from importlib.util import find_spec

    spec = find_spec(package)
    # A spec without origin is a namespace package, i.e. only a folder of that name in the working
    # directory: W&B creates the folder ``wandb`` for its files.
    if spec is not None and spec.origin is not None:
        return ""
    return f"{package} is not installed: pip install 'otel-mlperf[{package}]'"
