"""With which settings did a run record, so that what it left is later read and sent as it was?

They are stored in the run folder as variables. Secrets are not: headers and logins are those of
whoever delivers later, and go only to servers that this user names too. A run folder may come from
somebody else, with the address of that person's server in it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

# Not the standard library's: a ``json.py`` beside the program would be imported in its place.
import msgspec

from otel_mlperf.redaction import is_secret_key
from otel_mlperf.tracker_list import MLFLOW_URI, OFFLINE, TRACKIO_DIR, WANDB, WANDB_MODE
from otel_mlperf.whole_file import read_regular, write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FILE: Final = "settings.json"
_OURS: Final = "OTEL_"
_EXPORTER: Final = "OTEL_EXPORTER_"
_DESTINATIONS: Final = "OTEL_MLPERF_DESTINATIONS"
_ATTRIBUTES: Final = "OTEL_RESOURCE_ATTRIBUTES"
_OF_MLFLOW: Final = (
    MLFLOW_URI,
    "MLFLOW_EXPERIMENT_NAME",
    "MLFLOW_EXPERIMENT_ID",
    "MLFLOW_RUN_ID",
    "MLFLOW_TRACKING_INSECURE_TLS",
    "MLFLOW_TRACKING_SERVER_CERT_PATH",
    "MLFLOW_TRACKING_CLIENT_CERT_PATH",
)
_UNPROTECTED: Final = (
    "INSECURE", "INSECURE_TLS", "CERTIFICATE", "CLIENT_KEY", "SERVER_CERT_PATH", "CLIENT_CERT_PATH",
)  # fmt: skip
"""How variables end that turn off the check of a server's certificate, say which authorities are
trusted, or present a certificate of this user: a run folder must not decide that."""
_OF_WANDB: Final = ("WANDB_PROJECT", "WANDB_ENTITY", "WANDB_RUN_GROUP")
_OF_TRACKIO: Final = (TRACKIO_DIR, "TRACKIO_PROJECT", "HF_HOME")
_OF_TRACKERS: Final = _OF_MLFLOW + _OF_WANDB + _OF_TRACKIO
_MLFLOW_LOGIN: Final = ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME",
                        "MLFLOW_TRACKING_PASSWORD")  # fmt: skip


def write_settings(folder: str, environ: Mapping[str, str]) -> None:
    """Keeps the settings that ``environ`` gives; all ranks of a run write the same.

    Raises:
        OSError: the place refuses.
    """
    path = os.path.join(folder, FILE)
    ours = {name: value for name, value in environ.items() if name.startswith(_OURS)}
    known = {name: value for name, value in ours.items() if _is_kept(name, value)}
    known |= {name: environ[name] for name in _OF_TRACKERS if name in environ}
    known = {name: value for name, value in known.items() if _is_utf8(name + value)}
    if MLFLOW_URI in known:
        known[MLFLOW_URI] = _without_login(known[MLFLOW_URI])
    text = msgspec.json.format(msgspec.json.encode(known), indent=1)
    write_whole(path, text, temporary=f"{folder}/.settings-{os.getpid()}-{os.urandom(4).hex()}")


def _is_utf8(text: str) -> bool:
    """Whether JSON can carry a text; a variable may have any bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_kept(name: str, value: str) -> bool:
    # Attributes are free text, and in the journal already.
    if name == _ATTRIBUTES or name.endswith("HEADERS") or is_secret_key(name):
        return False
    # Of a URL: a login, or a query. Taking it apart would load ten modules into the training.
    return not (name.endswith("ENDPOINT") and ("@" in value or "?" in value))


def _without_login(uri: str) -> str:
    scheme, mark, rest = uri.partition("?")[0].partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{mark}{host.rpartition('@')[2]}{slash}{path}"


def as_recorded(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """``environ`` with the settings that the run in ``folder`` recorded with, in place of its own.

    It says itself where to send, where the run did not. Its headers and logins are used where it
    names every server that the run names, and nothing that the run has recorded turns off the
    protection of a connection.
    """
    try:
        recorded = msgspec.json.decode(read_regular(folder / FILE), type=dict[str, str])
    except (OSError, ValueError, msgspec.MsgspecError):  # recorded by an earlier version
        return dict(environ)
    rest = {name: value for name, value in environ.items() if not name.startswith(_OURS)}
    exporter = {name: value for name, value in environ.items() if name.startswith(_EXPORTER)}
    recorded = {
        name: value
        for name, value in recorded.items()
        if not name.endswith(_UNPROTECTED) or environ.get(name) == value
    }
    if servers := {name: value for name, value in recorded.items() if _is_endpoint(name)}:
        is_same = servers.items() <= exporter.items()
        exporter = {
            name: value for name, value in exporter.items() if is_same and name.endswith("HEADERS")
        }
    if meant := recorded.get(MLFLOW_URI):
        if _without_login(rest.get(MLFLOW_URI, "")) == meant:
            recorded |= {MLFLOW_URI: rest[MLFLOW_URI]}  # with the login that it may have
        else:
            rest = {name: value for name, value in rest.items() if name not in _MLFLOW_LOGIN}
    if WANDB in recorded.get(_DESTINATIONS, ""):
        # The file is made whole, by whoever has no login too; then ``wandb sync`` uploads it.
        recorded[WANDB_MODE] = OFFLINE
    return rest | exporter | recorded


def _is_endpoint(name: str) -> bool:
    return name.startswith(_EXPORTER) and name.endswith("ENDPOINT")
