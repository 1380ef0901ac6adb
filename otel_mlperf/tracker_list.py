"""Which trackers of experiments can be destinations, and what does each lack?

Asked in the training process too, which loads none of them: the agent does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

TENSORBOARD: Final = "tensorboard"
MLFLOW: Final = "mlflow"
TRACKERS: Final = (TENSORBOARD, MLFLOW)
MLFLOW_URI: Final = "MLFLOW_TRACKING_URI"
"""One of those that MLflow itself reads."""


def unusable(names: str, environ: Mapping[str, str]) -> list[str]:
    """What to tell of each tracker among ``names``, separated by commas, that lacks something."""
    looked_at = {TENSORBOARD: _of_tensorboard, MLFLOW: _of_mlflow}
    told = [looked_at[name](environ) for name in filter(None, names.split(","))]
    return [*filter(None, told)]


def _of_tensorboard(_: Mapping[str, str]) -> str:
    from importlib.util import find_spec

    if find_spec(TENSORBOARD) is not None:
        return ""
    return "tensorboard is not installed: pip install 'otel-mlperf[tensorboard]'"


def _of_mlflow(environ: Mapping[str, str]) -> str:
    uri = environ.get(MLFLOW_URI, "").strip()
    scheme, mark, rest = uri.partition("://")
    host = rest.partition("/")[0].rpartition("@")[2]
    if mark and scheme in ("http", "https") and host and uri.isprintable() and " " not in uri:
        return ""
    # What is no such address may still hold a login in front, or a key behind.
    found = repr(uri.rpartition("@")[2].partition("?")[0]) if uri else "none"
    return (
        f"mlflow needs the address of a tracking server: {MLFLOW_URI} is {found}, expected one "
        "like http://localhost:5000 (mlflow server --backend-store-uri sqlite:///mlflow.db)"
    )
