"""Settings of an MLflow server, from MLflow's environment variables, and a client of its API.

The client distinguishes temporary failures from permanent refusals.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote, urlencode, urlsplit

import msgspec

from otel_mlperf import names
from otel_mlperf.otlp.endpoint_settings import ServerSettings, basic_login, is_in_the_clear
from otel_mlperf.otlp.transport import ErrorDescriber, Transport, retry_after
from otel_mlperf.settings.tracker_list import MLFLOW_URI

if TYPE_CHECKING:
    from collections.abc import Mapping
    from urllib.parse import SplitResult

    from otel_mlperf.otlp.transport import Reply

TOKEN: Final = "MLFLOW_TRACKING_TOKEN"
USERNAME: Final = "MLFLOW_TRACKING_USERNAME"
PASSWORD: Final = "MLFLOW_TRACKING_PASSWORD"
_EXPERIMENT: Final = "MLFLOW_EXPERIMENT_NAME"
_EXPERIMENT_ID: Final = "MLFLOW_EXPERIMENT_ID"
_RUN: Final = "MLFLOW_RUN_ID"
_INSECURE: Final = "MLFLOW_TRACKING_INSECURE_TLS"
_CERTIFICATE: Final = "MLFLOW_TRACKING_SERVER_CERT_PATH"
_CLIENT_CERTIFICATE: Final = "MLFLOW_TRACKING_CLIENT_CERT_PATH"
"""Path of one file with the client certificate and its key."""
_TIMEOUT_S: Final = 60.0
"""Long, because storing a thousand points in a file-based database can take seconds."""


@dataclass(frozen=True, slots=True)
class MlflowSettings:
    """Settings of the MLflow server, the experiment and the run."""

    server: ServerSettings
    experiment: str
    """Name of the experiment; empty if only ``experiment_id`` identifies it."""
    experiment_id: str
    run_id: str
    """Id of a run that the user has created; empty if a run must be found or created."""
    is_login_readable: bool
    """Whether a login is sent over plain http to another machine, which MLflow permits."""


def read_mlflow_settings(environ: Mapping[str, str]) -> MlflowSettings:
    """Read the settings from the environment variables that MLflow documents."""
    given = {name: value.strip() for name, value in environ.items() if name.startswith("MLFLOW_")}
    url = urlsplit(given[MLFLOW_URI])
    server = ServerSettings(
        endpoint=f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path.rstrip('/')}",
        headers=_login(given, url),
        timeout_s=_TIMEOUT_S,
        certificate=given.get(_CERTIFICATE) or None,
        client_certificate=given.get(_CLIENT_CERTIFICATE) or None,
        is_verified=given.get(_INSECURE, "").lower() not in ("true", "1"),
    )
    experiment, experiment_id = given.get(_EXPERIMENT, ""), given.get(_EXPERIMENT_ID, "")
    return MlflowSettings(
        server=server,
        experiment=experiment or ("" if experiment_id else "Default"),
        experiment_id=experiment_id,
        run_id=given.get(_RUN, ""),
        is_login_readable=bool(server.headers) and is_in_the_clear(url),
    )


def _login(given: Mapping[str, str], url: SplitResult) -> dict[str, str]:
    name, password, token = (given.get(variable, "") for variable in (USERNAME, PASSWORD, TOKEN))
    if name and password:
        return {"authorization": basic_login(name, password)}
    if token:
        return {"authorization": f"Bearer {token}"}
    if url.username is not None:
        login = basic_login(unquote(url.username), unquote(url.password or ""))
        return {"authorization": login}
    return {}


_API: Final = "/api/2.0/mlflow/"
_ARTIFACTS: Final = "/api/2.0/mlflow-artifacts/artifacts/"
_MAX_RESPONSE_BYTES: Final = 32 << 20
"""Maximum size of a response, in bytes. The description of a run contains the last value of each
metric."""
_LOCKED_OUT_S: Final = 30.0
"""Minimum wait after an error that only the user can fix, such as a wrong login."""
_OF_CONTENT: Final = (400, 409, 413, 422)
"""Statuses that reject the content of a request, even without an MLflow error code."""
_FOR_NOW: Final = (408, 425, 429)
_ADVICE: Final = {
    401: "check MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
    403: "the login has no permission for this call",
    404: "check that MLFLOW_TRACKING_URI is the address of an MLflow server",
    405: "check that MLFLOW_TRACKING_URI is the address of an MLflow server",
}


class Unavailable(Exception):
    """An API call failed temporarily and can be retried."""

    def __init__(self, reason: str, after_s: float | None = None) -> None:
        """Store the ``reason`` for the log and the minimum wait before a retry (None: backoff)."""
        super().__init__(reason)
        self.reason, self.after_s = reason, after_s


class Rejected(Exception):
    """The server has refused an API call permanently."""

    def __init__(self, code: str, message: str) -> None:
        """``code`` is MLflow's error code; empty if the response contains none."""
        super().__init__(message)
        self.code, self.message = code, message


class MlflowClient:
    """Client of an MLflow server, for one thread. Calls raise ``Unavailable`` or ``Rejected``."""

    def __init__(self, settings: ServerSettings) -> None:
        self._endpoint = settings.endpoint
        self._path = urlsplit(settings.endpoint).path
        self._transport = Transport(settings, _MAX_RESPONSE_BYTES)
        self._headers = settings.headers | {"user-agent": f"{names.SCOPE}/{names.VERSION}"}
        self._errors = ErrorDescriber(settings)

    def get(self, call: str, **params: str) -> dict[str, Any]:
        """Send a GET request (e.g. ``runs/get``); return the decoded response."""
        return self._call("GET", f"{_API}{call}?{urlencode(params)}", b"")

    def post(self, call: str, **content: object) -> dict[str, Any]:
        """Send a POST request (e.g. ``runs/create``); return the decoded response."""
        return self._call("POST", _API + call, msgspec.json.encode(content))

    def put(self, artifact: str, content: bytes, kind: str) -> dict[str, Any]:
        """Upload a file of MIME type ``kind`` as ``artifact`` of the server's artifact store."""
        return self._call("PUT", _ARTIFACTS + quote(artifact), content, kind)

    def close(self) -> None:
        """Close the connection. The next call opens a new one."""
        self._transport.close()

    def _call(
        self, method: str, call: str, body: bytes, kind: str = "application/json"
    ) -> dict[str, Any]:
        headers = self._headers | ({"content-type": kind} if body else {})
        try:
            reply = self._transport.ask(method, self._path + call, body, headers)
        except (OSError, HTTPException, ValueError) as error:
            raise Unavailable(f"{self._endpoint}: {self._errors.why(error)}") from error
        content = _content(reply)
        if reply.status == 200 and content is not None:
            return content
        raise self._refusal(call.partition("?")[0].removeprefix(_API), reply, content)

    def _refusal(
        self, call: str, reply: Reply, content: dict[str, Any] | None
    ) -> Unavailable | Rejected:
        status, code = reply.status, str((content or {}).get("error_code", ""))
        message = self._errors.clean(str((content or {}).get("message", "")))
        advice = "" if code and status == 404 else _ADVICE.get(status, "")
        if status < 400:
            advice = "this is not the answer of an MLflow server; redirects are not followed"
        detail = ": ".join(part for part in (advice, message) if part)
        answered = f"{self._endpoint} answered {status} to {call}"
        answered += f": {detail}" if detail else ""
        if status in _OF_CONTENT or (code and status == 404):
            return Rejected(code, answered)
        after_s = retry_after(reply.headers.get("retry-after"), time.time())
        if status < 500 and status not in _FOR_NOW:
            after_s = max(after_s or 0.0, _LOCKED_OUT_S)
        return Unavailable(answered, after_s)


def _content(reply: Reply) -> dict[str, Any] | None:
    try:
        content = msgspec.json.decode(reply.body) if reply.complete else None
    except ValueError:  # base class of msgspec's errors
        return None
    return content if isinstance(content, dict) else None
