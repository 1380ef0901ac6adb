"""Settings of a run, stored in its folder for commands that process the run folder later.

The settings are stored as environment variables, without secrets. Commands never send data to
destinations that a run folder names, because the folder might come from another user. Destinations
always come from the caller of the command; the recorded ones are only shown in messages.
"""

from __future__ import annotations

import os
from dataclasses import fields
from typing import TYPE_CHECKING, Final, NamedTuple

# Not the standard library's ``json``: a ``json.py`` next to the program would shadow it.
import msgspec

from otel_mlperf.redaction import is_secret_key
from otel_mlperf.settings.config import DESTINATIONS, ENDPOINT, PROTOCOLS, Config
from otel_mlperf.settings.declared_config import declare
from otel_mlperf.settings.tracker_list import (
    HF_HOME,
    MLFLOW_URI,
    OFFLINE,
    TRACKIO_DIR,
    WANDB,
    WANDB_MODE,
)
from otel_mlperf.whole_file import read_regular, write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FILE: Final = "settings.json"
_OURS: Final = "OTEL_"
_ATTRIBUTES: Final = "OTEL_RESOURCE_ATTRIBUTES"
_EXPORTERS: Final = ("OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER")
_ENCODING: Final = (
    "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION",
    "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE",
    "OTEL_METRICS_EXEMPLAR_FILTER",
)
_LIMIT: Final = "_LIMIT"
"""Suffix of the variables of span limits, which belong to the run's settings, too."""
_OF_CALLER: Final = (ENDPOINT, "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_MLPERF_DIR")
_OF_RUN: Final = {
    variable for item in fields(Config) if (variable := item.metadata["variable"]) not in _OF_CALLER
}.union(_ENCODING)
"""Variables that are read from a run folder. Any other variable there is ignored: it could name a
proxy, trusted authorities, a certificate of this user, or a destination of another package."""
_IN_MLFLOW: Final = ("MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID", "MLFLOW_RUN_ID")
_OF_PROJECTS: Final = ("WANDB_PROJECT", "WANDB_ENTITY", "WANDB_RUN_GROUP", "TRACKIO_PROJECT")
_PLACES: Final = (MLFLOW_URI, TRACKIO_DIR, HF_HOME)
_OF_TRACKERS: Final = _IN_MLFLOW + _OF_PROJECTS + _PLACES


class StoredSettings(NamedTuple):
    """Settings with which a command processes a run folder."""

    environ: dict[str, str]
    """Environment variables: destinations from the caller, all other settings from the run."""
    recorded_destinations: dict[str, str]
    """Variables that name the destinations of the run itself, for messages only."""


def write_settings(folder: str, environ: Mapping[str, str]) -> None:
    """Store the settings of ``environ`` in a run folder; all ranks of a run write the same file.

    Raises:
        OSError: the file cannot be written.
    """
    path = os.path.join(folder, FILE)
    ours = {name: value for name, value in environ.items() if name.startswith(_OURS)}
    known = {name: value for name, value in ours.items() if _is_stored(name, value)}
    known |= {name: environ[name] for name in _OF_TRACKERS if name in environ}
    known = {name: value for name, value in known.items() if _is_utf8(name + value)}
    if MLFLOW_URI in known:
        known[MLFLOW_URI] = _without_login(known[MLFLOW_URI])
    text = msgspec.json.format(msgspec.json.encode(known), indent=1)
    write_whole(path, text, temporary=f"{folder}/.settings-{os.getpid()}-{os.urandom(4).hex()}")


def _is_utf8(text: str) -> bool:
    """Return whether JSON can contain ``text``: an environment variable can contain any bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_stored(name: str, value: str) -> bool:
    # Not the resource attributes: they are free text, and the journal contains them.
    if name == _ATTRIBUTES or name.endswith("HEADERS") or is_secret_key(name):
        return False
    # The login or query of a URL may be secret. Not parsed with urllib: its import would load ten
    # modules into the training process.
    return not (name.endswith("ENDPOINT") and ("@" in value or "?" in value))


def _without_login(uri: str) -> str:
    scheme, mark, rest = uri.partition("?")[0].partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{mark}{host.rpartition('@')[2]}{slash}{path}"


def with_endpoint(environ: Mapping[str, str], endpoint: str | None) -> Mapping[str, str]:
    """Return ``environ`` with ``endpoint`` as the only OTLP endpoint; unchanged if that is None."""
    if endpoint is None:
        return environ
    named, _ = declare(environ)
    rest = {name: value for name, value in named.items() if not _is_endpoint(name)}
    return rest | {ENDPOINT: endpoint}


def read_stored(folder: Path, environ: Mapping[str, str]) -> StoredSettings:
    """Combine the settings stored in a run folder with the destinations of the caller.

    If the folder contains no readable settings, the result is the environment of the caller.

    Args:
        folder: a run folder, possibly from another user.
        environ: the caller's environment variables.
    """
    try:
        recorded = msgspec.json.decode(read_regular(folder / FILE), type=dict[str, str])
    except (OSError, ValueError, msgspec.MsgspecError):  # e.g. recorded by an earlier version
        return StoredSettings(dict(environ), {})
    named, _ = declare(environ)
    excluded = {"OTEL_MLPERF_CONFIG", "OTEL_MLPERF_DIR", _ATTRIBUTES} | _OF_RUN
    given = {name: value for name, value in named.items() if not name.endswith(_LIMIT)}
    caller = {name: value for name, value in given.items() if name not in excluded}
    run = {name: value for name, value in recorded.items() if _is_of_run(name, value)}
    if _is_same_server(recorded, caller):
        run |= {name: recorded[name] for name in _IN_MLFLOW if name in recorded}
    if WANDB in run.get(DESTINATIONS, ""):
        # Offline: the file is completed without a login, and ``wandb sync`` can upload it.
        run[WANDB_MODE] = OFFLINE
    places = {name: value for name, value in recorded.items() if _is_destination(name, value)}
    return StoredSettings(caller | run, places)


def _is_of_run(name: str, value: str) -> bool:
    # Of the exporters only "none" is used: "otlp" without an endpoint would be a destination, the
    # collector on localhost.
    is_switched_off = name in _EXPORTERS and value.strip().lower() == "none"
    return name in _OF_RUN or name.endswith(_LIMIT) or name in _OF_PROJECTS or is_switched_off


def _is_same_server(recorded: Mapping[str, str], caller: Mapping[str, str]) -> bool:
    """Return whether run and caller use one MLflow server; only then are recorded ids valid."""
    server = _without_login(caller.get(MLFLOW_URI, ""))
    return bool(server) and server == _without_login(recorded.get(MLFLOW_URI, ""))


def _is_destination(name: str, value: str) -> bool:
    # Includes protocols, which determine the meaning of an endpoint (gRPC: the scheme is optional).
    # Only printable values: messages show them, and control characters could command a terminal.
    is_named = _is_endpoint(name) or name in (*_EXPORTERS, *PROTOCOLS, *_PLACES)
    return is_named and value.isprintable()


def _is_endpoint(name: str) -> bool:
    return name.startswith("OTEL_EXPORTER_OTLP_") and name.endswith("ENDPOINT")
