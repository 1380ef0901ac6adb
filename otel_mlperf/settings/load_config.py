"""Loading of the effective settings from arguments, environment and YAML file.

The precedence is argument, environment, YAML file, default. A declarative configuration file of
OpenTelemetry replaces the standard ``OTEL_*`` variables. Settings are read once, at ``start()``,
and never change afterwards. Invalid arguments and files raise ``ConfigError`` before recording
starts. An invalid variable only causes a warning and is ignored, as the OpenTelemetry specification
requires.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from otel_mlperf.errors import ConfigError
from otel_mlperf.settings.config import LEVELS, Config
from otel_mlperf.settings.declared_config import MAX_FILE_BYTES, declare
from otel_mlperf.settings.setting_values import checked
from otel_mlperf.whole_file import read_regular

_log = logging.getLogger("otel_mlperf")
_FILE_VARIABLE: Final = "OTEL_MLPERF_CONFIG"


def load_config(
    config: Config | Mapping[str, Any] | str | os.PathLike[str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """Load the effective settings.

    Args:
        config: a ``Config`` or mapping (with the precedence of arguments), or the path of a YAML
            file (default: the file that ``OTEL_MLPERF_CONFIG`` names).
        overrides: single settings, with the highest precedence.
        environ: the environment (default: ``os.environ``).

    Raises:
        ConfigError: an unknown setting, an invalid value, or an unreadable file given as
            ``config``. A file that the environment names is ignored with a warning instead.
    """
    environ, _ = declare(os.environ if environ is None else environ)
    given: dict[str, Any] = {}
    path = environ.get(_FILE_VARIABLE, "")
    if isinstance(config, Config):
        given = {f.name: v for f in fields(config) if (v := getattr(config, f.name)) != f.default}
    elif isinstance(config, Mapping):
        given = dict(config)
    elif isinstance(config, str | os.PathLike):
        path = os.fspath(config)
    elif config is not None:
        raise ConfigError(
            f"start(): config is {config!r:.40}, expected a Config, a mapping or a YAML file's path"
        )
    is_argument = isinstance(config, str | os.PathLike)
    from_file = _read_file(path) if is_argument else _read_named_file(path)
    given.update(overrides or {})
    _reject_unknown(given, "start()")
    settings = from_file | _from_environ(environ, from_file) | given
    return Config(**(_of_level(settings.get("level", "")) | settings))


def _of_level(level: Any) -> dict[str, Any]:
    return LEVELS.get(level, {}) if isinstance(level, str) else {}


def _from_environ(environ: Mapping[str, str], from_file: dict[str, Any]) -> dict[str, Any]:
    given = {}
    for item in fields(Config):
        variable = item.metadata["variable"]
        text = environ.get(variable, "").strip()
        if not text:
            continue
        try:
            given[item.name] = checked(item, text, variable)
        except ConfigError as error:
            _log.warning("%s; using %r", error, from_file.get(item.name, item.default))
    return given


def _read_named_file(path: str) -> dict[str, Any]:
    """Read the file that the environment names; errors are logged, as they must not end the job."""
    try:
        return _read_file(path) if path else {}
    except ConfigError as error:
        _log.warning("%s=%s: %s; the file is not used", _FILE_VARIABLE, path, error)
        return {}


def _read_file(path: str) -> dict[str, Any]:
    import yaml

    try:
        # Follow links, because Kubernetes mounts configuration as links. Read only regular files:
        # reading a pipe or a device might never end.
        content = yaml.safe_load(read_regular(os.path.realpath(path), MAX_FILE_BYTES).decode())
    # ValueError: the bytes are not UTF-8, or a number or date is invalid.
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"reading the configuration file {path}: {reason}; correct the file or the path"
        ) from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(
            f"reading the configuration file {path}: found a {type(content).__name__}, expected "
            "settings; write one 'name: value' per line"
        )
    _reject_unknown(content, path)
    for item in fields(Config):
        if item.name in content:
            _reject_nested(content[item.name], f"{path}: {item.name}")
            content[item.name] = checked(item, content[item.name], f"{path}: {item.name}")
    return content


def _reject_nested(value: Any, where: str) -> None:
    """Reject nested lists, because YAML aliases of aliases could expand to text of any size."""
    parts = value.values() if isinstance(value, Mapping) else value
    if isinstance(value, Mapping | list) and any(isinstance(x, Mapping | list) for x in parts):
        raise ConfigError(f"{where}: found a nested list or mapping, expected names")


def _reject_unknown(given: Mapping[Any, Any], where: str) -> None:
    known = [item.name for item in fields(Config)]
    for key in given:
        if key not in known:
            import difflib

            close = difflib.get_close_matches(str(key), known, 1, 0.5)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
            raise ConfigError(f"{where}: unknown setting {str(key)!r}; {hint}")
