"""MLflow's server: its settings from MLflow's own variables, and a client of its REST API.

The client distinguishes failures that may pass from permanent refusals.
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
_ANSWER_MOST: Final = 32 << 20
"""Maximum size of an answer, in bytes: a run's answer has the last value of each of its metrics."""
_LOCKED_OUT_S: Final = 30.0
"""Wait after an answer that requires a change by the user: it will not pass by itself."""
_OF_CONTENT: Final = (400, 409, 413, 422)
"""Statuses that are about this very request, whoever answers."""
_FOR_NOW: Final = (408, 425, 429)
_ADVICE: Final = {
    401: "check MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
    403: "the login has no permission for this call",
    404: "check that MLFLOW_TRACKING_URI is the address of an MLflow server",
    405: "check that MLFLOW_TRACKING_URI is the address of an MLflow server",
}


class Unavailable(Exception):
    """The call had no conclusive answer and may be retried."""

    def __init__(self, reason: str, after_s: float | None = None) -> None:
        """``reason`` is for people, ``after_s`` the minimum wait before the next try."""
        super().__init__(reason)
        self.reason, self.after_s = reason, after_s


class Rejected(Exception):
    """The server refuses the call permanently."""

    def __init__(self, code: str, message: str) -> None:
        """``code`` is MLflow's own error code, empty if it was not MLflow that answered."""
        super().__init__(message)
        self.code, self.message = code, message


class MlflowClient:
    """Client of one server, for one thread. Each call raises ``Unavailable`` or ``Rejected``."""

    def __init__(self, settings: ServerSettings) -> None:
        self._endpoint = settings.endpoint
        self._path = urlsplit(settings.endpoint).path
        self._transport = Transport(settings, _ANSWER_MOST)
        self._headers = settings.headers | {"user-agent": f"{names.SCOPE}/{names.VERSION}"}
        self._errors = ErrorDescriber(settings)

    def get(self, call: str, **params: str) -> dict[str, Any]:
        """Return the answer to a GET call."""
        return self._call("GET", f"{_API}{call}?{urlencode(params)}", b"")

    def post(self, call: str, **content: object) -> dict[str, Any]:
        """Return the answer to a POST call, which changes something or queries by a body."""
        return self._call("POST", _API + call, msgspec.json.encode(content))

    def put(self, artifact: str, content: bytes, kind: str) -> dict[str, Any]:
        """Upload a file of MIME type ``kind`` to the server's own artifact store."""
        return self._call("PUT", _ARTIFACTS + quote(artifact), content, kind)

    def close(self) -> None:
        """Close the connection; the next call opens another."""
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
    """Return the JSON object of an answer; None if it is not one."""
    try:
        content = msgspec.json.decode(reply.body) if reply.complete else None
    except ValueError:  # msgspec's errors are
        return None
    return content if isinstance(content, dict) else None
