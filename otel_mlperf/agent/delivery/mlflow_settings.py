"""Settings of the MLflow server: endpoint, login and run, from MLflow's own variables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from otel_mlperf.otlp.endpoint_settings import ServerSettings, basic_login, is_in_the_clear
from otel_mlperf.settings.tracker_list import MLFLOW_URI

if TYPE_CHECKING:
    from collections.abc import Mapping
    from urllib.parse import SplitResult

TOKEN: Final = "MLFLOW_TRACKING_TOKEN"
USERNAME: Final = "MLFLOW_TRACKING_USERNAME"
PASSWORD: Final = "MLFLOW_TRACKING_PASSWORD"
_EXPERIMENT: Final = "MLFLOW_EXPERIMENT_NAME"
_EXPERIMENT_ID: Final = "MLFLOW_EXPERIMENT_ID"
_RUN: Final = "MLFLOW_RUN_ID"
_INSECURE: Final = "MLFLOW_TRACKING_INSECURE_TLS"
_CERTIFICATE: Final = "MLFLOW_TRACKING_SERVER_CERT_PATH"
_CLIENT_CERTIFICATE: Final = "MLFLOW_TRACKING_CLIENT_CERT_PATH"
"""One file with the certificate and its key."""
_TIMEOUT_S: Final = 60.0
"""A thousand points in a file-based database take seconds on a busy machine."""


@dataclass(frozen=True, slots=True)
class MlflowSettings:
    """Settings of the server, and of the experiment and run at it."""

    server: ServerSettings
    experiment: str
    """Name of the experiment; empty: identified by its id alone."""
    experiment_id: str
    run_id: str
    """Id of a run that the user has created; empty: a run is found or created."""
    is_login_readable: bool
    """Whether a login is sent over plain http to another machine, as MLflow permits."""


def read_mlflow_settings(environ: Mapping[str, str]) -> MlflowSettings:
    """Read the settings from the variables, as MLflow documents them."""
    said = {name: value.strip() for name, value in environ.items() if name.startswith("MLFLOW_")}
    url = urlsplit(said[MLFLOW_URI])
    server = ServerSettings(
        endpoint=f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path.rstrip('/')}",
        headers=_login(said, url),
        timeout_s=_TIMEOUT_S,
        certificate=said.get(_CERTIFICATE) or None,
        client_certificate=said.get(_CLIENT_CERTIFICATE) or None,
        is_verified=said.get(_INSECURE, "").lower() not in ("true", "1"),
    )
    experiment, experiment_id = said.get(_EXPERIMENT, ""), said.get(_EXPERIMENT_ID, "")
    return MlflowSettings(
        server=server,
        experiment=experiment or ("" if experiment_id else "Default"),
        experiment_id=experiment_id,
        run_id=said.get(_RUN, ""),
        is_login_readable=bool(server.headers) and is_in_the_clear(url),
    )


def _login(said: Mapping[str, str], url: SplitResult) -> dict[str, str]:
    name, password, token = (said.get(variable, "") for variable in (USERNAME, PASSWORD, TOKEN))
    if name and password:
        return {"authorization": basic_login(name, password)}
    if token:
        return {"authorization": f"Bearer {token}"}
    if url.username is not None:
        login = basic_login(unquote(url.username), unquote(url.password or ""))
        return {"authorization": login}
    return {}
