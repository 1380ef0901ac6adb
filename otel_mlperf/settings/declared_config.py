"""Translation of the file that ``OTEL_CONFIG_FILE`` names into standard variables.

The format is OpenTelemetry's declarative configuration, ``file_format`` 1.0. As the standard
requires, the file replaces the ``OTEL_*`` variables, which are ignored unless the file refers to
them (``${VARIABLE:-default}``). One warning lists the settings of the file that this package does
not support. If the file cannot be read, there is a warning, and the variables apply.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from otel_mlperf.whole_file import read_regular

VARIABLES: Final = ("OTEL_CONFIG_FILE", "OTEL_EXPERIMENTAL_CONFIG_FILE")
"""Variables that name the configuration file; the first one that is set applies."""
PROPAGATORS: Final = "OTEL_PROPAGATORS"
_OWN: Final = "OTEL_MLPERF_"
_ALWAYS_APPLIED: Final = ("OTEL_SDK_DISABLED",)
"""Standard variables that apply in addition to a file, so that the environment can always disable
recording."""
_INSECURE: Final = "_INSECURE"
"""Suffix of variables that apply in addition, because a file cannot set them for OTLP over HTTP."""
_REFERENCE: Final = re.compile(r"\$\$|\$\{(?:(?:env:)?([A-Za-z_]\w*)(?::-([^\n}]*))?|[^}]*)\}")
_CONSOLE: Final = "console"
_EXPORTERS: Final = ("otlp_http", "otlp_grpc", _CONSOLE)
_MAX_NAMED: Final = 12
MAX_FILE_BYTES: Final = 1 << 20


class Unreadable(Exception):
    """Reason why a configuration file cannot be used."""


def declare(environ: Mapping[str, str]) -> tuple[Mapping[str, str], list[str]]:
    """Return the environment with the settings of the configuration file as standard variables.

    Returns:
        The environment, and warnings about the file or its unsupported settings. The environment is
        unchanged if it names no file. If the file cannot be used, only the variables that name the
        file are removed.
    """
    variable = next((name for name in VARIABLES if environ.get(name, "").strip()), "")
    if not variable:
        return environ, []
    path = environ[variable].strip()
    unnamed = {name: value for name, value in environ.items() if name not in VARIABLES}
    try:
        declared, unused = _translate(_read(path, environ))
    except Unreadable as reason:
        return unnamed, [f"{variable}={path}: {reason}; the OTEL_* variables are used instead"]
    applied = {name: value for name, value in unnamed.items() if _applies(name)}
    if not unused:
        return applied | declared, []
    named = ", ".join(unused[:_MAX_NAMED]) + (" …" if len(unused) > _MAX_NAMED else "")
    return applied | declared, [f"{variable}={path}: unsupported settings are ignored: {named}"]


def _applies(name: str) -> bool:
    is_standard = name.startswith("OTEL_") and not name.startswith(_OWN)
    return not is_standard or name in _ALWAYS_APPLIED or name.endswith(_INSECURE)


# -- reading of the file ---------------------------------------------------------------------------


def _read(path: str, environ: Mapping[str, str]) -> dict[str, Any]:
    import yaml

    try:
        # Follow links, because Kubernetes mounts configuration as links. Read only regular files:
        # reading a pipe or a device might never end.
        text = read_regular(os.path.realpath(path), MAX_FILE_BYTES).decode()
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        _substitute(loader, node, environ)
        content = loader.construct_document(node) if node is not None else None
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        problem = getattr(error, "strerror", None) or getattr(error, "problem", None) or error
        raise Unreadable(str(problem)) from error
    if not isinstance(content, dict):
        raise Unreadable(f"found a {type(content).__name__}, expected a mapping of settings")
    version = str(content.pop("file_format", "none"))
    if not version.startswith("1."):
        raise Unreadable(f"file_format is {version!r:.40}, expected 1.0")
    return content


def _substitute(loader: Any, top: Any, environ: Mapping[str, str]) -> None:
    """Substitute variables in values, but not in keys; YAML then determines the values' types."""
    import yaml

    nodes, seen = [top], set[int]()
    while nodes:
        node = nodes.pop()
        if id(node) in seen:  # an alias, perhaps of its own parent
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            nodes += [value for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            nodes += node.value
        elif isinstance(node, yaml.ScalarNode) and "$" in node.value:
            node.value = _REFERENCE.sub(lambda found: _value_of(found, environ), node.value)
            if node.style is None:  # a quoted value is always text
                node.tag = loader.resolve(yaml.ScalarNode, node.value, (True, False))


def _value_of(reference: re.Match[str], environ: Mapping[str, str]) -> str:
    name, default = reference.groups()
    if reference.group() == "$$":
        return "$"
    if name is None:
        raise ValueError(f"{reference.group()!r:.80} is not a valid reference to a variable")
    return environ.get(name, "") or default or ""


# -- translation -----------------------------------------------------------------------------------


class _Part:
    """Mapping in the file, with a record of the keys that have not been used yet.

    Args:
        content: the mapping, or None; a value of another type is reported as unused.
        path: keys that lead to the mapping, each followed by a dot.
        parts: all mappings of the file, to which this one is added.
    """

    def __init__(self, content: Any, path: str, parts: list[_Part]) -> None:
        self.path, self._parts = path, parts
        self.left: dict[str, Any] = {}
        if isinstance(content, Mapping):
            self.left = {str(key): value for key, value in content.items()}
        elif content is not None:
            self.left = {"": content}
        parts.append(self)

    def value(self, key: str) -> str:
        """Mark ``key`` as used; return its scalar as text, "" if ``key`` has no scalar."""
        value = self.left.get(key)
        if isinstance(value, Mapping | list):
            return ""
        self.left.pop(key, None)
        return (
            str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)
        )

    def part(self, key: str) -> _Part:
        return _Part(self.left.pop(key, None), f"{self.path}{key}.", self._parts)

    def items(self, key: str) -> list[_Part]:
        """Mark ``key`` as used; return the mappings in its list, [] if ``key`` has no list."""
        value = self.left.get(key)
        if not isinstance(value, list):
            return []
        del self.left[key]
        return [_Part(one, f"{self.path}{key}[{i}].", self._parts) for i, one in enumerate(value)]

    def unused(self) -> list[str]:
        return [f"{self.path}{key}".rstrip(".") for key in self.left]


def _translate(content: dict[str, Any]) -> tuple[dict[str, str], list[str]]:
    """Return the equivalent variables, and the paths of settings in the file that were not used."""
    parts: list[_Part] = []
    file = _Part(content, "", parts)
    variables = {
        "OTEL_SDK_DISABLED": "true" if file.value("disabled") == "true" else "",
        "OTEL_RESOURCE_ATTRIBUTES": _resource(file.part("resource")),
        PROPAGATORS: _propagators(file.part("propagator")),
    }
    for holder, one, signal in (
        ("tracer_provider", "processors", "traces"),
        ("meter_provider", "readers", "metrics"),
    ):
        variables |= _exported(file.part(holder).items(one), signal)
    unused = [place for part in parts for place in part.unused()]
    return {name: value for name, value in variables.items() if value}, unused


def _resource(resource: _Part) -> str:
    resource.value("schema_url")
    pairs = [resource.value("attributes_list")]
    for attribute in resource.items("attributes"):
        attribute.value("type")
        name, value = attribute.value("name"), attribute.value("value")
        if name and value:
            pairs.append(f"{quote(name)}={quote(value, safe='')}")
    return ",".join(filter(None, pairs))


def _propagators(propagator: _Part) -> str:
    names: list[str] = []
    for one in propagator.items("composite"):
        names += one.left
        one.left.clear()
    listed = [name.strip() for name in propagator.value("composite_list").split(",")]
    return ",".join(dict.fromkeys(filter(None, [*names, *listed])))


def _exported(exporting: list[_Part], signal: str) -> dict[str, str]:
    """Return the variables of a signal's first OTLP exporter, and of console exporters."""
    variables: dict[str, str] = {}
    listed = []
    for one in exporting:
        for kind in ("batch", "simple", "periodic"):
            if kind not in one.left:
                continue
            holder = one.part(kind)
            exporter = holder.part("exporter")
            name = next((name for name in _EXPORTERS if name in exporter.left), "")
            if name == _CONSOLE:
                listed.append(name)
                exporter.part(name)
            elif name and not variables:
                listed.append("otlp")
                variables = _interval(holder, kind) | _otlp(exporter.part(name), name, signal)
    if _CONSOLE in listed:
        variables[f"OTEL_{signal.upper()}_EXPORTER"] = ",".join(listed)
    return variables


def _interval(holder: _Part, kind: str) -> dict[str, str]:
    return {"OTEL_METRIC_EXPORT_INTERVAL": holder.value("interval")} if kind == "periodic" else {}


def _otlp(exporter: _Part, name: str, signal: str) -> dict[str, str]:
    is_grpc = name == "otlp_grpc"
    default = "http://localhost:4317" if is_grpc else f"http://localhost:4318/v1/{signal}"
    endpoint = exporter.value("endpoint") or default
    exporter.value("encoding")
    tls = exporter.part("tls")
    own = {
        "ENDPOINT": endpoint,
        "PROTOCOL": "grpc" if is_grpc else "",
        "HEADERS": _headers(exporter),
        "TIMEOUT": exporter.value("timeout"),
        "COMPRESSION": exporter.value("compression"),
        "CERTIFICATE": tls.value("ca_file"),
        "CLIENT_KEY": tls.value("key_file"),
        "CLIENT_CERTIFICATE": tls.value("cert_file"),
        "INSECURE": tls.value("insecure"),
    }
    variables = {f"OTEL_EXPORTER_OTLP_{signal.upper()}_{key}": value for key, value in own.items()}
    if signal == "metrics":
        aggregation = exporter.value("default_histogram_aggregation")
        variables |= {
            "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": exporter.value(
                "temporality_preference"
            ),
            "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION": aggregation,
        }
    return {variable: value for variable, value in variables.items() if value}


def _headers(exporter: _Part) -> str:
    """Return an exporter's headers in the format of the variable.

    Items of ``headers`` come last, so that they override the same names in ``headers_list``.
    """
    pairs = [exporter.value("headers_list")]
    for header in exporter.items("headers"):
        name, value = header.value("name"), header.value("value")
        if name:
            content = quote(value, safe="", encoding="latin-1", errors="replace")
            pairs.append(f"{quote(name)}={content}")
    return ",".join(filter(None, pairs))
