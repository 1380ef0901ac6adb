"""Keys and values of a run's points, parameters and tags in MLflow.

MLflow accepts letters, digits, ``_``, ``-``, ``.``, ``:``, spaces and slashes in a key, at most 250
of them. It refuses a key that would change when normalized as a path.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import msgspec

from otel_mlperf.agent.delivery.tracker_rows import json_safe_number
from otel_mlperf.agent.delivery.tracker_tags import curve_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from otel_mlperf.agent.delivery.destination import Batch
    from otel_mlperf.agent.model.scalar_item import ScalarItem

_KEY_MOST: Final = 250
_PARAM_MOST: Final = 6000
_TAG_MOST: Final = 5000
_FOREIGN: Final = re.compile(r"[^/\w.\- :]")
_NEVER_A_PART: Final = ("", ".", "..")


def metric_of(key: str, scalar: ScalarItem) -> dict[str, Any]:
    """Return a metric of ``runs/log-batch``."""
    return {
        "key": key,
        "value": json_safe_number(scalar.value),
        "timestamp": scalar.time_ns // 10**6,
        "step": scalar.number or 0,
    }


def key_of(scalar: ScalarItem, batch: Batch, *, is_alone: bool) -> str:
    """Return the key of a point's curve in MLflow."""
    return safe_key(curve_of(scalar, batch, is_alone=is_alone))


def safe_key(key: str) -> str:
    """Return a key that MLflow accepts: unchanged where possible; distinct keys stay distinct."""
    parts = [part for part in _FOREIGN.sub("_", key).split("/") if part not in _NEVER_A_PART]
    safe = "/".join(parts) or "_"
    if len(safe) <= _KEY_MOST and not _FOREIGN.search(key):
        return safe
    mark = blake2b(key.encode("utf-8", "replace"), digest_size=3).hexdigest()
    return f"{safe[: _KEY_MOST - len(mark) - 1]}-{mark}"


def params_of(params: Mapping[str, Any]) -> dict[str, str]:
    """Return parameters by key as text; nested ones get the key ``outer.inner``."""
    return {safe_key(key): text[:_PARAM_MOST] for key, text in _flat(params, "")}


def tags_of(tags: list[str]) -> dict[str, str]:
    """Return tags by key: ``name=value``, or a name alone."""
    parts = [tag.partition("=") for tag in tags]
    return {safe_key(key): tag_text(value if sign else "true") for key, sign, value in parts}


def tag_text(text: str) -> str:
    """Truncate a text to the length limit of a tag."""
    return text[:_TAG_MOST]


def _flat(params: Mapping[str, Any], before: str) -> Iterator[tuple[str, str]]:
    for name, value in params.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{before}{name}.")
        elif isinstance(value, dict | list):
            yield f"{before}{name}", msgspec.json.encode(value).decode()
        else:
            yield f"{before}{name}", str(value)
